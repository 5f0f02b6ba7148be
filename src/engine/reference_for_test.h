// A slow interpreter in double precision over the graph as it is in the file: no fusion, no
// packing, no plan. The oracle of the engine.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "package/package.h"

namespace granule::engine {

using Matrix = std::vector<std::vector<double>>;  // [rows][width]

class ReferenceModel {
 public:
  explicit ReferenceModel(const package::Package& package)
      : package_(package), graph_(package.model.graph) {}

  // Logits of every position of the tokens.
  Matrix Run(const std::vector<int32_t>& tokens) {
    std::map<onnx::ValueId, Matrix> values;
    for (const onnx::Node& node : graph_.nodes) {
      const auto have = [&](size_t i) { return values.contains(node.input(i)); };
      if (node.op == "Gather" && node.input(1) == package_.roles.input_ids) {
        const auto table = Floats(node.input(0));
        const size_t width =
            table.size() / static_cast<size_t>(graph_.FindConstant(node.input(0))->dims[0]);
        Matrix y;
        for (const int32_t t : tokens)
          y.emplace_back(table.begin() + static_cast<long>(t * width),
                         table.begin() + static_cast<long>((t + 1) * width));
        values[node.outputs[0]] = y;
      } else if ((node.op == "MatMul" || node.op == "MatMulNBits") && have(0)) {
        values[node.outputs[0]] = Multiply(values[node.input(0)], Weights(node));
      } else if (node.op == "SimplifiedLayerNormalization") {
        values[node.outputs[0]] =
            Norm(values[node.input(0)], Floats(node.input(1)), node.Float("epsilon", 0));
      } else if (node.op == "SkipSimplifiedLayerNormalization") {
        Matrix sum = values[node.input(0)];
        const Matrix& skip = values[node.input(1)];
        for (size_t r = 0; r < sum.size(); ++r) {
          for (size_t i = 0; i < sum[r].size(); ++i) sum[r][i] += skip[r][i];
        }
        values[node.outputs[0]] = Norm(sum, Floats(node.input(2)), node.Float("epsilon", 0));
        if (node.output(3) != onnx::kNone) values[node.output(3)] = sum;
      } else if (node.op == "Sigmoid") {
        Matrix y = values[node.input(0)];
        for (auto& row : y) {
          for (double& x : row) x = 1.0 / (1.0 + std::exp(-x));
        }
        values[node.outputs[0]] = y;
      } else if (node.op == "Mul" && have(0) && have(1)) {
        Matrix y = values[node.input(0)];
        const Matrix& z = values[node.input(1)];
        for (size_t r = 0; r < y.size(); ++r) {
          for (size_t i = 0; i < y[r].size(); ++i) y[r][i] *= z[r][i];
        }
        values[node.outputs[0]] = y;
      } else if (node.op == "Concat" && have(0)) {
        Matrix y(tokens.size());
        for (const onnx::ValueId v : node.inputs) {
          for (size_t r = 0; r < y.size(); ++r)
            y[r].insert(y[r].end(), values[v][r].begin(), values[v][r].end());
        }
        values[node.outputs[0]] = y;
      } else if (node.op == "GroupQueryAttention") {
        values[node.outputs[0]] = Attention(node, values);
      }
    }
    return values[package_.roles.logits];
  }

 private:
  std::vector<double> Floats(onnx::ValueId v) const {
    const onnx::Tensor* t = graph_.FindConstant(v);
    GRANULE_CHECK(t != nullptr && t->dtype == DType::kF32);
    const auto data = t->As<float>();
    return {data.begin(), data.end()};
  }

  // [n][k]
  Matrix Weights(const onnx::Node& node) const {
    if (node.op == "MatMul") {
      const onnx::Tensor* t = graph_.FindConstant(node.input(1));
      const auto k = static_cast<size_t>(t->dims[0]), n = static_cast<size_t>(t->dims[1]);
      Matrix w(n, std::vector<double>(k));
      for (size_t j = 0; j < k; ++j) {
        for (size_t i = 0; i < n; ++i) w[i][j] = t->As<float>()[j * n + i];
      }
      return w;
    }
    const auto n = static_cast<size_t>(node.Int("N", 0)), k = static_cast<size_t>(node.Int("K", 0));
    const auto block = static_cast<size_t>(node.Int("block_size", 0)),
               bits = static_cast<size_t>(node.Int("bits", 4));
    const size_t blocks = (k + block - 1) / block;
    const auto q = graph_.FindConstant(node.input(1))->As<uint8_t>();
    const auto scales = Floats(node.input(2));
    const auto zeros = node.input(3) == onnx::kNone ? std::vector<double>() : Floats(node.input(3));
    Matrix w(n, std::vector<double>(k));
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < k; ++j) {
        const size_t at = i * blocks * block + j;
        const int code = bits == 8 ? q[at] : (q[at / 2] >> (at % 2 * 4)) & 15;
        const size_t b = i * blocks + j / block;
        const double zero = zeros.empty() ? static_cast<double>(1 << (bits - 1)) : zeros[b];
        w[i][j] = (code - zero) * scales[b];
      }
    }
    return w;
  }

  static Matrix Multiply(const Matrix& x, const Matrix& w) {
    Matrix y(x.size(), std::vector<double>(w.size()));
    for (size_t r = 0; r < x.size(); ++r) {
      for (size_t n = 0; n < w.size(); ++n) {
        for (size_t k = 0; k < w[n].size(); ++k) y[r][n] += x[r][k] * w[n][k];
      }
    }
    return y;
  }

  static Matrix Norm(const Matrix& x, const std::vector<double>& gamma, double epsilon) {
    Matrix y = x;
    for (auto& row : y) {
      double sum = 0;
      for (const double v : row) sum += v * v;
      const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(row.size()) + epsilon);
      for (size_t i = 0; i < row.size(); ++i) row[i] *= inverse * gamma[i];
    }
    return y;
  }

  Matrix Attention(const onnx::Node& node, std::map<onnx::ValueId, Matrix>& values) const {
    const auto heads = static_cast<size_t>(node.Int("num_heads", 0)),
               kv_heads = static_cast<size_t>(node.Int("kv_num_heads", 0));
    const package::KvPort* port = nullptr;
    for (const auto& p : package_.roles.kv) {
      if (p.past_key == node.input(3)) port = &p;
    }
    const auto d = static_cast<size_t>(port->head_dim);
    Matrix q = values[node.input(0)], k, v;
    const auto columns = [](const Matrix& m, size_t begin, size_t count) {
      Matrix y;
      for (const auto& row : m)
        y.emplace_back(row.begin() + static_cast<long>(begin),
                       row.begin() + static_cast<long>(begin + count));
      return y;
    };
    if (node.input(1) == onnx::kNone) {
      k = columns(q, heads * d, kv_heads * d);
      v = columns(q, (heads + kv_heads) * d, kv_heads * d);
      q = columns(q, 0, heads * d);
    } else {
      k = values[node.input(1)];
      v = values[node.input(2)];
    }
    if (node.Int("do_rotary", 0) != 0) {
      const auto cos = Floats(node.input(7)), sin = Floats(node.input(8));
      const size_t half = static_cast<size_t>(graph_.FindConstant(node.input(7))->dims[1]);
      const auto rotate = [&](Matrix& m, size_t n) {
        for (size_t t = 0; t < m.size(); ++t) {
          for (size_t h = 0; h < n; ++h) {
            for (size_t i = 0; i < half; ++i) {
              double& a = m[t][h * d + i];
              double& b = m[t][h * d + half + i];
              const double c = cos[t * half + i], s = sin[t * half + i], x = a, y = b;
              a = x * c - y * s;
              b = y * c + x * s;
            }
          }
        }
      };
      rotate(q, heads);
      rotate(k, kv_heads);
    }
    if (port->dtype == DType::kF16) {
      for (Matrix* m : {&k, &v}) {
        for (auto& row : *m) {
          for (double& x : row) x = F16ToF32(F32ToF16(static_cast<float>(x)));
        }
      }
    }
    Matrix out(q.size(), std::vector<double>(heads * d));
    for (size_t t = 0; t < q.size(); ++t) {
      for (size_t h = 0; h < heads; ++h) {
        const size_t g = h / (heads / kv_heads);
        std::vector<double> p(t + 1);
        double largest = -INFINITY, sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          for (size_t i = 0; i < d; ++i) p[s] += q[t][h * d + i] * k[s][g * d + i];
          p[s] /= std::sqrt(static_cast<double>(d));
          largest = std::max(largest, p[s]);
        }
        for (double& x : p) sum += x = std::exp(x - largest);
        for (size_t s = 0; s <= t; ++s) {
          for (size_t i = 0; i < d; ++i) out[t][h * d + i] += p[s] / sum * v[s][g * d + i];
        }
      }
    }
    return out;
  }

  const package::Package& package_;
  const onnx::Graph& graph_;
};

}  // namespace granule::engine
