#include "package/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/arith.h"
#include "base/file.h"

namespace granule::package {
namespace {

constexpr uint64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kMaxDims = 4;
// Every entry begins with the length of its name: what a count is held against. Memory is only
// taken for entries that were read.
constexpr uint64_t kMinEntryBytes = 8;

// Bytes of one value, 0 where that depends on the value.
uint64_t FixedBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32:
      return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

template <class T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A number as the file has it; where it reads like a negative one, that too.
std::string Show(uint64_t value) {
  if (value <= kMaxInt) return Format("{}", value);
  return Format("{} ({} as a signed number)", value, static_cast<int64_t>(value));
}

std::string Quote(std::string_view name) {
  constexpr size_t kLongest = 80;
  std::string text = "\"";
  for (char c : name.substr(0, kLongest)) text += (c >= 32 && c < 127) ? c : '?';
  return text + (name.size() > kLongest ? "…\"" : "\"");
}

// Reads forward. Every read says what it is for and is held against the bytes that are left.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  Result<std::span<const std::byte>> Take(uint64_t n, const std::string& field) {
    if (n > left()) {
      return InvalidInput("ends early: {} at byte {} needs {} bytes, the file has {} more", field,
                          position_, Show(n), left());
    }
    std::span<const std::byte> taken = bytes_.subspan(position_, n);
    position_ += n;
    return taken;
  }

  template <class T>
  Status Read(T* value, const std::string& field) {
    Result<std::span<const std::byte>> taken = Take(sizeof(T), field);
    if (!taken.ok()) return taken.status();
    *value = Load<T>(taken->data());
    return {};
  }

  Status ReadString(std::string_view* text, const std::string& field) {
    uint64_t length = 0;
    if (Status s = Read(&length, "the length of " + field); !s.ok()) return s;
    if (length > left()) {
      return InvalidInput("{} at byte {} has length {}, but only {} bytes follow", field, position_,
                          Show(length), left());
    }
    *text = {reinterpret_cast<const char*>(bytes_.data() + position_), length};
    position_ += length;
    return {};
  }

  std::span<const std::byte> Since(uint64_t start) const {
    return bytes_.subspan(start, position_ - start);
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
};

Status ReadValueType(Cursor& in, GgufValueType* type, const std::string& field) {
  uint32_t number = 0;
  if (Status s = in.Read(&number, "the type of " + field); !s.ok()) return s;
  if (number > static_cast<uint32_t>(GgufValueType::kF64)) {
    return InvalidInput("{} has the value type {}, the format knows 0 to 12", field, number);
  }
  *type = static_cast<GgufValueType>(number);
  return {};
}

// Reads the head of an array and passes over its elements.
Status PassArray(Cursor& in, int depth, const std::string& field, GgufValueType* element_type,
                 uint64_t* count, std::span<const std::byte>* payload) {
  if (depth > kMaxArrayDepth) {
    return InvalidInput("{} nests arrays deeper than {} levels", field, kMaxArrayDepth);
  }
  if (Status s = ReadValueType(in, element_type, "the elements of " + field); !s.ok()) return s;
  if (Status s = in.Read(count, "the length of " + field); !s.ok()) return s;
  const uint64_t fixed = FixedBytes(*element_type);
  // A string has at least its length, an array its element type and length.
  const uint64_t least = fixed != 0 ? fixed : (*element_type == GgufValueType::kString ? 8 : 12);
  if (*count > in.left() / least) {
    return InvalidInput("{} claims {} elements of {}, but only {} bytes follow", field,
                        Show(*count), GgufValueTypeName(*element_type), in.left());
  }
  const uint64_t start = in.position();
  if (fixed != 0) {
    Result<std::span<const std::byte>> taken = in.Take(*count * fixed, field);
    if (!taken.ok()) return taken.status();
  } else {
    for (uint64_t i = 0; i < *count; ++i) {
      if (*element_type == GgufValueType::kString) {
        std::string_view text;
        if (Status s = in.ReadString(&text, Format("{}[{}]", field, i)); !s.ok()) return s;
      } else {
        GgufValueType inner_type;
        uint64_t inner_count = 0;
        std::span<const std::byte> inner;
        if (Status s = PassArray(in, depth + 1, field, &inner_type, &inner_count, &inner); !s.ok())
          return s;
      }
    }
  }
  *payload = in.Since(start);
  return {};
}

Status ReadMetadata(Cursor& in, uint64_t index, GgufValue* value) {
  if (Status s = in.ReadString(&value->key, Format("metadata key {}", index)); !s.ok()) return s;
  if (value->key.empty()) return InvalidInput("metadata key {} is empty", index);
  const std::string field = "metadata " + Quote(value->key);
  if (Status s = ReadValueType(in, &value->type, field); !s.ok()) return s;
  if (value->type == GgufValueType::kArray) {
    return PassArray(in, 1, field, &value->element_type, &value->count, &value->payload);
  }
  if (value->type == GgufValueType::kString) {
    std::string_view text;
    if (Status s = in.ReadString(&text, field); !s.ok()) return s;
    value->payload = std::as_bytes(std::span(text));
    return {};
  }
  Result<std::span<const std::byte>> taken = in.Take(FixedBytes(value->type), field);
  if (!taken.ok()) return taken.status();
  value->payload = *taken;
  return {};
}

Status ReadDims(Cursor& in, const std::string& field, std::vector<int64_t>* dims) {
  uint32_t rank = 0;
  if (Status s = in.Read(&rank, "the number of dimensions of " + field); !s.ok()) return s;
  if (rank == 0 || rank > kMaxDims) {
    return InvalidInput("{} has {} dimensions, 1 to {} are possible", field, rank, kMaxDims);
  }
  int64_t product = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    uint64_t dim = 0;
    if (Status s = in.Read(&dim, Format("dimension {} of {}", i, field)); !s.ok()) return s;
    if (dim == 0 || dim > kMaxInt)
      return InvalidInput("dimension {} of {} is {}", i, field, Show(dim));
    dims->push_back(static_cast<int64_t>(dim));
    const std::optional<int64_t> next = CheckedMul(product, dims->back());
    if (!next) {
      return InvalidInput(
          "the dimensions of {} multiply to more than 2^63 - 1 elements at dimension {} = {}",
          field, i, dim);
    }
    product = *next;
  }
  return {};
}

struct TensorEntry {
  GgufTensor tensor;
  uint64_t offset = 0;  // from the start of the data section
  uint64_t bytes = 0;
};

Status ReadTensorEntry(Cursor& in, uint64_t index, uint64_t alignment, TensorEntry* entry) {
  GgufTensor& tensor = entry->tensor;
  if (Status s = in.ReadString(&tensor.name, Format("the name of tensor {}", index)); !s.ok())
    return s;
  if (tensor.name.empty()) return InvalidInput("the name of tensor {} is empty", index);
  const std::string field = "tensor " + Quote(tensor.name);
  if (Status s = ReadDims(in, field, &tensor.dims); !s.ok()) return s;
  uint32_t number = 0;
  if (Status s = in.Read(&number, "the type of " + field); !s.ok()) return s;
  tensor.type = static_cast<GgmlType>(number);
  const GgmlTypeInfo* info = FindGgmlType(tensor.type);
  if (info == nullptr)
    return InvalidInput("{} has type {}, which the format does not define", field, number);
  if (tensor.row() % info->block != 0) {
    return InvalidInput("{} of type {} has rows of {} elements; they must be a multiple of {}",
                        field, info->name, tensor.row(), info->block);
  }
  const std::optional<int64_t> bytes =
      CheckedMul(tensor.elements() / info->block, static_cast<int64_t>(info->bytes));
  if (!bytes) {
    return InvalidInput("{} of type {} with {} elements takes more than 2^63 - 1 bytes", field,
                        info->name, tensor.elements());
  }
  entry->bytes = static_cast<uint64_t>(*bytes);
  if (Status s = in.Read(&entry->offset, "the offset of " + field); !s.ok()) return s;
  if (entry->offset % alignment != 0) {
    return InvalidInput("{} has offset {}, which is no multiple of the alignment {}", field,
                        Show(entry->offset), alignment);
  }
  return {};
}

Status ReadAlignment(const GgufFile& file, uint64_t* alignment) {
  const GgufValue* entry = file.Find("general.alignment");
  if (entry == nullptr) return {};
  const std::optional<int64_t> value = entry->AsInt();
  if (!value || *value <= 0 || (*value & (*value - 1)) != 0) {
    return InvalidInput("metadata \"general.alignment\" is {}; a power of two above 0 is expected",
                        value ? Format("{}", *value) : entry->TypeText());
  }
  *alignment = static_cast<uint64_t>(*value);
  return {};
}

Status ReadHead(Cursor& in, std::span<const std::byte> bytes, GgufFile* file, uint64_t* tensors,
                uint64_t* entries) {
  if (bytes.size() < 4 || std::memcmp(bytes.data(), "GGUF", 4) != 0) {
    const std::string known = ExplainForeignBytes(bytes);
    if (!known.empty()) return InvalidInput("not a GGUF file: it {}", known);
    return InvalidInput(
        "not a GGUF file: it starts with {} instead of \"GGUF\"",
        Quote({reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 4)}));
  }
  uint32_t magic = 0;
  if (Status s = in.Read(&magic, "the magic number"); !s.ok()) return s;
  if (Status s = in.Read(&file->version, "the version"); !s.ok()) return s;
  if (file->version != 0 && (file->version & 0xffff) == 0) {
    return InvalidInput(
        "version {} reads as {} in the other byte order: big-endian GGUF files are not supported",
        file->version, __builtin_bswap32(file->version));
  }
  if (file->version != 2 && file->version != 3) {
    return InvalidInput("version {} of the format is not supported (2 and 3 are)", file->version);
  }
  if (Status s = in.Read(tensors, "the tensor count"); !s.ok()) return s;
  if (Status s = in.Read(entries, "the metadata count"); !s.ok()) return s;
  if (*tensors > in.left() / kMinEntryBytes) {
    return InvalidInput("the tensor count is {}, but only {} bytes follow", Show(*tensors),
                        in.left());
  }
  if (*entries > in.left() / kMinEntryBytes) {
    return InvalidInput("the metadata count is {}, but only {} bytes follow", Show(*entries),
                        in.left());
  }
  return {};
}

// Gives each tensor its bytes in the data section, which starts at the next aligned position.
Status PlaceTensors(std::span<const std::byte> bytes, uint64_t table_end,
                    std::vector<TensorEntry> entries, GgufFile* file) {
  const uint64_t start = SaturatingMul(CeilDiv(table_end, file->alignment), file->alignment);
  for (TensorEntry& entry : entries) {
    const uint64_t end = SaturatingAdd(SaturatingAdd(start, entry.offset), entry.bytes);
    if (end > bytes.size()) {
      return InvalidInput(
          "tensor {} lies past the end of the file: data at byte {} + offset {} + {} bytes, the "
          "file has {}",
          Quote(entry.tensor.name), start, Show(entry.offset), entry.bytes, bytes.size());
    }
    entry.tensor.bytes = bytes.subspan(start + entry.offset, entry.bytes);
    file->tensors.push_back(std::move(entry.tensor));
  }
  return {};
}

}  // namespace

Result<GgufFile> ParseGguf(std::span<const std::byte> bytes) {
  GgufFile file;
  Cursor in(bytes);
  uint64_t tensor_count = 0;
  uint64_t metadata_count = 0;
  if (Status s = ReadHead(in, bytes, &file, &tensor_count, &metadata_count); !s.ok()) return s;

  std::unordered_set<std::string_view> seen;
  for (uint64_t i = 0; i < metadata_count; ++i) {
    GgufValue value;
    if (Status s = ReadMetadata(in, i, &value); !s.ok()) return s;
    if (!seen.insert(value.key).second)
      return InvalidInput("metadata key {} appears twice", Quote(value.key));
    file.metadata.push_back(value);
  }
  if (Status s = ReadAlignment(file, &file.alignment); !s.ok()) return s;

  seen.clear();
  std::vector<TensorEntry> entries;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    TensorEntry entry;
    if (Status s = ReadTensorEntry(in, i, file.alignment, &entry); !s.ok()) return s;
    if (!seen.insert(entry.tensor.name).second)
      return InvalidInput("tensor {} appears twice", Quote(entry.tensor.name));
    entries.push_back(std::move(entry));
  }
  if (Status s = PlaceTensors(bytes, in.position(), std::move(entries), &file); !s.ok()) return s;
  return file;
}

}  // namespace granule::package
