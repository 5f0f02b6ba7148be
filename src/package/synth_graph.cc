#include "package/synth_graph.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onnx/tensor_reader.h"
#include "package/synth_values.h"

namespace granule::package {
namespace {

constexpr int64_t kOnnxFloat = 1;  // TensorProto.DataType
constexpr int64_t kPieceElements = int64_t{1} << 20;
// Tensors up to here are never left out. No less than what Simplify folds of a Cast (onnx/
// simplify.cc).
constexpr uint64_t kSmallTensorBytes = 64 << 10;

class SynthWeights final : public DecoderWeights {
 public:
  SynthWeights(const SynthModel& model, onnx::ModelWriter& writer, const SynthGraphOptions& options)
      : model_(model), values_(model), out_(writer), options_(options) {}

  Result<std::string> AddEmbedding() override;
  Status AddNorm(Norm norm, int64_t layer, const std::string& name) override;
  Result<std::string> AddProduct(const Product& product) override;
  Status AddHead(const std::string& rows) override;

  const SynthGraphBytes& bytes() const { return bytes_; }

 private:
  bool quantized() const {
    return model_.format == SynthFormat::kInt4 || model_.format == SynthFormat::kInt8;
  }
  int64_t bits() const { return model_.format == SynthFormat::kInt4 ? 4 : 8; }
  DType dense_type() const {
    return model_.format == SynthFormat::kFp16 ? DType::kF16 : DType::kF32;
  }

  Status Begin(const std::string& name, DType dtype, std::vector<int64_t> dims, bool read);
  // Whether the tensor that was begun is not to be filled, because this describes it.
  bool LeaveOut(const std::string& name, const SynthTensor& tensor);
  template <class T>
  Status Append(std::span<const T> numbers);
  Status AppendFloats(std::span<const float> numbers, DType dtype);

  // [N, K] in codes and scales; `dims` are those of the codes.
  Status AddQuantized(const SynthMatrix& matrix, const std::string& name, std::vector<int64_t> dims,
                      bool read);
  // As the element type of the format: [N, K], or [K, N] as MatMul takes it.
  Status AddRows(const SynthMatrix& matrix, const std::string& name);
  Status AddTransposed(const SynthMatrix& matrix, const std::string& name);
  // Columns [begin, begin + out.size()) of a row as numbers.
  void Numbers(const SynthMatrix& matrix, int64_t row, int64_t begin, std::span<float> out);
  std::string AsFloats(const std::string& value, const std::string& node);
  Status AddMatMul(const SynthMatrix& matrix, const std::string& weight, const std::string& node,
                   const std::string& input, const std::string& output);

  const SynthModel& model_;
  const SynthValues values_;
  onnx::ModelWriter& out_;
  const SynthGraphOptions& options_;
  SynthGraphBytes bytes_;
  uint64_t tensor_bytes_ = 0;  // of the tensor that was begun last
  std::vector<int8_t> codes_;
};

Status SynthWeights::Begin(const std::string& name, DType dtype, std::vector<int64_t> dims,
                           bool read) {
  const Result<uint64_t> bytes = onnx::CountBytes(dtype, dims);
  if (!bytes.ok()) return bytes.status().In("tensor " + name);
  tensor_bytes_ = *bytes;
  bytes_.weights += *bytes;
  bytes_.read += read ? *bytes : 0;
  return out_.BeginTensor(name, dtype, std::move(dims));
}

bool SynthWeights::LeaveOut(const std::string& name, const SynthTensor& tensor) {
  if (!options_.values) return true;
  if (options_.left_out == nullptr || tensor_bytes_ <= kSmallTensorBytes) return false;
  options_.left_out->emplace(name, tensor);
  return true;
}

template <class T>
Status SynthWeights::Append(std::span<const T> numbers) {
  if (Status s = out_.Append(std::as_bytes(numbers)); !s.ok()) return s;
  return options_.written ? options_.written(numbers.size_bytes()) : Status();
}

Status SynthWeights::AppendFloats(std::span<const float> numbers, DType dtype) {
  if (dtype == DType::kF32) return Append(numbers);
  std::vector<uint16_t> halves(numbers.size());
  std::transform(numbers.begin(), numbers.end(), halves.begin(), F32ToF16);
  return Append(std::span<const uint16_t>(halves));
}

Status SynthWeights::AddQuantized(const SynthMatrix& matrix, const std::string& name,
                                  std::vector<int64_t> dims, bool read) {
  if (Status s = Begin(name + "_quant", DType::kU8, std::move(dims), read); !s.ok()) return s;
  using Form = SynthTensor::Form;
  const bool no_codes = LeaveOut(
      name + "_quant", {.matrix = matrix, .form = Form::kCodes, .bits = static_cast<int>(bits())});
  const int64_t blocks = matrix.columns / kSynthBlock;
  const int64_t piece_rows = std::clamp<int64_t>(kPieceElements / matrix.columns, 1, matrix.rows);
  codes_.resize(static_cast<size_t>(matrix.columns));
  std::vector<uint8_t> packed;
  for (int64_t row = 0; !no_codes && row < matrix.rows;) {
    packed.clear();
    const int64_t end = std::min(row + piece_rows, matrix.rows);
    for (; row < end; ++row) {
      values_.Codes(matrix, row, 0, codes_);
      const size_t at = packed.size();
      if (bits() == 8) {
        packed.resize(at + codes_.size());
        for (size_t i = 0; i < codes_.size(); ++i)
          packed[at + i] = static_cast<uint8_t>(codes_[i] + 128);
      } else {
        packed.resize(at + codes_.size() / 2);
        for (size_t i = 0; i < codes_.size() / 2; ++i)
          packed[at + i] = static_cast<uint8_t>((codes_[2 * i] + 8) | (codes_[2 * i + 1] + 8) << 4);
      }
    }
    if (Status s = Append(std::span<const uint8_t>(packed)); !s.ok()) return s;
  }
  if (Status s = Begin(name + "_scales", DType::kF32, {matrix.rows, blocks}, read); !s.ok())
    return s;
  const bool no_scales = LeaveOut(name + "_scales", {.matrix = matrix, .form = Form::kScales});
  std::vector<float> scales;
  for (int64_t row = 0; !no_scales && row < matrix.rows; ++row) {
    for (int64_t block = 0; block < blocks; ++block)
      scales.push_back(values_.Scale(matrix, row, block));
    if (static_cast<int64_t>(scales.size()) < kPieceElements && row + 1 < matrix.rows) continue;
    if (Status s = Append(std::span<const float>(scales)); !s.ok()) return s;
    scales.clear();
  }
  return {};
}

void SynthWeights::Numbers(const SynthMatrix& matrix, int64_t row, int64_t begin,
                           std::span<float> out) {
  codes_.resize(out.size());
  values_.Codes(matrix, row, begin, codes_);
  for (size_t i = 0; i < out.size(); i += kSynthBlock) {
    const float scale = values_.Scale(matrix, row, (begin + static_cast<int64_t>(i)) / kSynthBlock);
    for (size_t j = i; j < i + kSynthBlock; ++j) out[j] = static_cast<float>(codes_[j]) * scale;
  }
}

Status SynthWeights::AddRows(const SynthMatrix& matrix, const std::string& name) {
  if (Status s = Begin(name, dense_type(), {matrix.rows, matrix.columns}, /*read=*/false); !s.ok())
    return s;
  const bool left_out =
      LeaveOut(name, {.matrix = matrix, .form = SynthTensor::Form::kRows, .dtype = dense_type()});
  std::vector<float> row(static_cast<size_t>(matrix.columns));
  for (int64_t r = 0; !left_out && r < matrix.rows; ++r) {
    Numbers(matrix, r, 0, row);
    if (Status s = AppendFloats(row, dense_type()); !s.ok()) return s;
  }
  return {};
}

Status SynthWeights::AddTransposed(const SynthMatrix& matrix, const std::string& name) {
  const int64_t n = matrix.rows, k = matrix.columns;
  if (Status s = Begin(name, dense_type(), {k, n}, /*read=*/true); !s.ok()) return s;
  const SynthTensor tensor{
      .matrix = matrix, .form = SynthTensor::Form::kTransposed, .dtype = dense_type()};
  if (LeaveOut(name, tensor)) return {};
  // A strip of whole blocks of columns at a time: as many as a few MiB hold, whatever N is.
  const int64_t width =
      std::clamp<int64_t>(2 * kPieceElements / n / kSynthBlock, 1, k / kSynthBlock) * kSynthBlock;
  std::vector<float> strip(static_cast<size_t>(width * n)), piece(static_cast<size_t>(width));
  for (int64_t begin = 0; begin < k; begin += width) {
    const int64_t columns = std::min(width, k - begin);
    for (int64_t r = 0; r < n; ++r) {
      Numbers(matrix, r, begin, std::span(piece).first(static_cast<size_t>(columns)));
      for (int64_t c = 0; c < columns; ++c)
        strip[static_cast<size_t>(c * n + r)] = piece[static_cast<size_t>(c)];
    }
    Status s = AppendFloats(std::span(strip).first(static_cast<size_t>(columns * n)), dense_type());
    if (!s.ok()) return s;
  }
  return {};
}

// fp16 constants are cast where they are used; runtimes fold that when they load.
std::string SynthWeights::AsFloats(const std::string& value, const std::string& node) {
  if (dense_type() == DType::kF32) return value;
  out_.AddNode("Cast", "", node + "/Cast", {value}, {node + "/Cast/output_0"},
               {{"to", kOnnxFloat}});
  return node + "/Cast/output_0";
}

Result<std::string> SynthWeights::AddEmbedding() {
  const SynthMatrix table = values_.Table();
  const std::string base = "/model/embed_tokens", name = kTableWeight;
  if (quantized()) {
    std::string hidden = base + "/GatherBlockQuantized/output_0";
    Status s = AddQuantized(table, name, {table.rows, table.columns * bits() / 8}, /*read=*/false);
    if (!s.ok()) return s;
    out_.AddNode("GatherBlockQuantized", kMsDomain, base + "/GatherBlockQuantized",
                 {name + "_quant", "input_ids", name + "_scales"}, {hidden},
                 {{"bits", bits()},
                  {"block_size", kSynthBlock},
                  {"gather_axis", int64_t{0}},
                  {"quantize_axis", int64_t{1}}});
    return hidden;
  }
  if (Status s = AddRows(table, name); !s.ok()) return s;
  const std::string rows = base + "/Gather/output_0";
  out_.AddNode("Gather", "", base + "/Gather", {name, "input_ids"}, {rows}, {});
  return AsFloats(rows, base);
}

Status SynthWeights::AddNorm(Norm norm, int64_t layer, const std::string& name) {
  if (Status s = Begin(name, DType::kF32, {model_.hidden}, /*read=*/true); !s.ok()) return s;
  if (!options_.values) return {};
  std::vector<float> gamma;
  for (int64_t i = 0; i < model_.hidden; ++i) gamma.push_back(values_.Gamma(norm, layer, i));
  return Append(std::span<const float>(gamma));
}

Status SynthWeights::AddMatMul(const SynthMatrix& matrix, const std::string& weight,
                               const std::string& node, const std::string& input,
                               const std::string& output) {
  if (!quantized()) {
    if (Status s = AddTransposed(matrix, weight); !s.ok()) return s;
    out_.AddNode("MatMul", "", node, {input, AsFloats(weight, node)}, {output}, {});
    return {};
  }
  Status s = AddQuantized(matrix, weight,
                          {matrix.rows, matrix.columns / kSynthBlock, kSynthBlock * bits() / 8},
                          /*read=*/true);
  if (!s.ok()) return s;
  out_.AddNode(
      "MatMulNBits", kMsDomain, node + "NBits", {input, weight + "_quant", weight + "_scales"},
      {output},
      {{"K", matrix.columns}, {"N", matrix.rows}, {"bits", bits()}, {"block_size", kSynthBlock}});
  return {};
}

Result<std::string> SynthWeights::AddProduct(const Product& product) {
  const SynthMatrix matrix = values_.Of(product.projection, product.layer);
  std::string output = product.node + "/output_0";
  if (Status s = AddMatMul(matrix, product.weight, product.node, product.input, output); !s.ok())
    return s;
  const bool biased = model_.qkv_bias && (product.projection == Projection::kQuery ||
                                          product.projection == Projection::kKey ||
                                          product.projection == Projection::kValue);
  if (!biased) return output;
  // "....q_proj.MatMul.weight" -> "....q_proj.Add.bias"
  std::string name = product.weight;
  name.replace(name.rfind("MatMul.weight"), std::string::npos, "Add.bias");
  std::string node = product.node;
  node.replace(node.rfind("MatMul"), std::string::npos, "Add");
  if (Status s = Begin(name, DType::kF32, {matrix.rows}, /*read=*/true); !s.ok()) return s;
  std::vector<float> bias;
  for (int64_t i = 0; options_.values && i < matrix.rows; ++i)
    bias.push_back(values_.Bias(product.projection, product.layer, i));
  if (Status s = Append(std::span<const float>(bias)); !s.ok()) return s;
  out_.AddNode("Add", "", node, {output, name}, {node + "/output_0"}, {});
  return node + "/output_0";
}

Status SynthWeights::AddHead(const std::string& rows) {
  return AddMatMul(values_.Head(), kHeadWeight, "/lm_head/MatMul", rows, "logits");
}

}  // namespace

DecoderShape ShapeOf(const SynthModel& model) {
  DecoderShape shape{.layers = model.layers,
                     .context = model.context,
                     .heads = model.heads,
                     .kv_heads = model.kv_heads,
                     .head_dim = model.head_dim,
                     .vocab = model.vocab,
                     .rms_epsilon = 1e-6f,
                     .kv = model.kv,
                     .rope_frequencies = {}};
  for (int64_t i = 0; i < model.head_dim / 2; ++i)
    shape.rope_frequencies.push_back(RopeFrequency(model.rope_base, model.head_dim, i));
  return shape;
}

Result<SynthGraphBytes> WriteSynthGraph(const SynthModel& model, onnx::ModelWriter& writer,
                                        const SynthGraphOptions& options) {
  SynthWeights weights(model, writer, options);
  DecoderShape shape = ShapeOf(model);
  shape.fill_tables = options.values;
  if (Status s = WriteDecoderGraph(shape, weights, writer); !s.ok()) return s;
  return weights.bytes();
}

}  // namespace granule::package
