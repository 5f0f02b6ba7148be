#include "text/tokenizer.h"

#include <algorithm>

#include "base/file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/json.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/utf8.h"

namespace granule::text {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{512} << 20;
// Positions in a piece are 32-bit, and a pre-tokenizer can make four bytes of one.
constexpr size_t kMaxTextBytes = size_t{256} << 20;

class BpeTokenizer : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> Make(JsonValue* root);

  Result<std::vector<TokenId>> Encode(std::string_view text,
                                      const EncodeOptions& options) const override;
  std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::unique_ptr<Detokenizer> NewDetokenizer(bool skip_special_tokens) const override;

  std::string_view TokenBytes(TokenId id) const override {
    if (id < 0 || id >= vocab_size()) return {};
    return std::string_view(bytes_).substr(bytes_end_[id], bytes_end_[id + 1] - bytes_end_[id]);
  }
  bool IsSpecial(TokenId id) const override { return id >= 0 && id < vocab_size() && special_[id]; }
  TokenId FindToken(std::string_view content) const override {
    const TokenId added = added_.FindContent(content);
    return added >= 0 ? added : model_->vocabulary().Find(content);
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(special_.size()); }

  const Decoder& decoder() const { return *decoder_; }

  // Feeds one id to a chain; ids that mean nothing or are skipped feed nothing.
  void Feed(TokenId id, bool skip_special_tokens, Decoder::Chain* chain) const {
    if (id < 0 || id >= vocab_size()) return;
    if (skip_special_tokens && special_[id]) return;
    if (const AddedToken* added = added_.Find(id); added != nullptr) {
      chain->Token(added->content);
    } else if (model_->vocabulary().Has(id)) {
      chain->Token(model_->vocabulary().TextOf(id));
    }
  }

 private:
  void BuildTables();

  std::unique_ptr<const Normalizer> normalizer_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const BpeModel> model_;
  std::unique_ptr<const PostProcessor> post_processor_;
  std::unique_ptr<const Decoder> decoder_;
  AddedTokens added_;
  std::vector<bool> special_;      // [V]
  std::string bytes_;              // of all tokens, one after the other
  std::vector<size_t> bytes_end_;  // [V + 1]: token i has bytes_[bytes_end_[i], bytes_end_[i + 1])
};

class BpeDetokenizer : public Detokenizer {
 public:
  BpeDetokenizer(const BpeTokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer),
        skip_special_tokens_(skip_special_tokens),
        chain_(tokenizer.decoder(), &text_) {}
  std::string Push(TokenId id) override {
    tokenizer_.Feed(id, skip_special_tokens_, &chain_);
    return std::exchange(text_, {});
  }
  std::string Finish() override {
    chain_.Finish();
    return std::exchange(text_, {});
  }

 private:
  const BpeTokenizer& tokenizer_;
  const bool skip_special_tokens_;
  std::string text_;
  Decoder::Chain chain_;
};

// Why a JSON file without a usable `model` is not what was wanted.
Status ExplainWrongFile(const JsonValue& root) {
  if (!root.is_object()) {
    return InvalidInput("this is not a tokenizer.json: it holds {} instead of an object",
                        KindName(root.kind));
  }
  if (root.Find("tokenizer_class") != nullptr || root.Find("added_tokens_decoder") != nullptr) {
    return InvalidInput(
        "this looks like a tokenizer_config.json; the vocabulary is in the tokenizer.json beside "
        "it");
  }
  if (root.Find("architectures") != nullptr || root.Find("model_type") != nullptr) {
    return InvalidInput(
        "this looks like a model's config.json; the vocabulary is in the tokenizer.json beside it");
  }
  return InvalidInput("this is not a tokenizer.json: it has no `model`");
}

Status CheckModelType(const JsonValue& root) {
  const JsonValue* model = root.Find("model");
  if (model == nullptr || !model->is_object()) return ExplainWrongFile(root);
  if (const JsonValue* version = root.Find("version");
      version != nullptr && version->is_string() && version->string != "1.0") {
    return InvalidInput("version is \"{}\"; only \"1.0\" is supported", version->string);
  }
  const JsonValue* type = model->Find("type");
  if (type == nullptr || type->is_null()) {
    // Early files name no type; BPE is the one with merges.
    if (model->Find("merges") != nullptr) return {};
    return InvalidInput("model.type is missing; only \"BPE\" is supported");
  }
  if (!type->is_string() || type->string != "BPE") {
    return InvalidInput("model.type is {}; only \"BPE\" is supported",
                        type->is_string() ? "\"" + type->string + "\"" : KindName(type->kind));
  }
  return {};
}

Result<std::unique_ptr<Tokenizer>> BpeTokenizer::Make(JsonValue* root) {
  if (Status s = CheckModelType(*root); !s.ok()) return s;
  auto tokenizer = std::make_unique<BpeTokenizer>();

  auto normalizer = Normalizer::Parse(root->Find("normalizer"));
  if (!normalizer.ok()) return normalizer.status();
  tokenizer->normalizer_ = *std::move(normalizer);
  auto pre_tokenizer = PreTokenizer::Parse(root->Find("pre_tokenizer"));
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();
  tokenizer->pre_tokenizer_ = *std::move(pre_tokenizer);
  auto post_processor = PostProcessor::Parse(root->Find("post_processor"));
  if (!post_processor.ok()) return post_processor.status();
  tokenizer->post_processor_ = *std::move(post_processor);
  auto decoder = Decoder::Parse(root->Find("decoder"));
  if (!decoder.ok()) return decoder.status();
  tokenizer->decoder_ = *std::move(decoder);

  auto model = BpeModel::Parse(root->Find("model"));
  if (!model.ok()) return model.status();
  tokenizer->model_ = *std::move(model);
  if (Status s = tokenizer->added_.Parse(root->Find("added_tokens"),
                                         tokenizer->model_->vocabulary(), *tokenizer->normalizer_);
      !s.ok()) {
    return s;
  }
  tokenizer->BuildTables();
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

void BpeTokenizer::BuildTables() {
  const Vocabulary& vocabulary = model_->vocabulary();
  const int64_t size = std::max(vocabulary.end_id(), added_.end_id());
  special_.resize(static_cast<size_t>(size));
  bytes_end_.reserve(static_cast<size_t>(size) + 1);
  bytes_end_.push_back(0);
  for (TokenId id = 0; id < size; ++id) {
    const AddedToken* added = added_.Find(id);
    const std::string_view text = added != nullptr ? added->content : vocabulary.TextOf(id);
    // Special is a matter of the string: a plain vocabulary entry of the same content counts too.
    special_[id] = added != nullptr && added_.IsSpecialContent(added->content);
    bytes_ += decoder_->BytesOf(text);
    bytes_end_.push_back(bytes_.size());
  }
}

Result<std::vector<TokenId>> BpeTokenizer::Encode(std::string_view text,
                                                  const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return InvalidInput("the text has {} bytes; at most {} can be tokenized at once", text.size(),
                        kMaxTextBytes);
  }
  if (const std::optional<size_t> bad = FindInvalidUtf8(text); bad.has_value()) {
    return InvalidInput("the text is not UTF-8: byte 0x{:02X} at offset {}",
                        static_cast<uint8_t>(text[*bad]), *bad);
  }
  Pieces pieces;
  if (Status s = added_.Split(text, *normalizer_, options.parse_special_tokens, &pieces); !s.ok()) {
    return s;
  }
  if (Status s = pre_tokenizer_->Apply(&pieces); !s.ok()) return s;
  if (pieces.text.size() > 4 * kMaxTextBytes) {
    return InvalidInput(
        "the text has {} bytes after normalization; that is too long to tokenize at once",
        pieces.text.size());
  }

  const std::vector<bool> none;
  const std::vector<bool>& forbidden = options.parse_special_tokens ? none : special_;
  std::vector<TokenId> ids;
  ids.reserve(pieces.text.size() / 3);
  BpeModel::Scratch scratch;
  for (const Piece& piece : pieces.list) {
    if (piece.token >= 0) {
      ids.push_back(piece.token);
    } else if (Status s = model_->Encode(pieces.View(piece), forbidden, &scratch, &ids); !s.ok()) {
      return s;
    }
  }
  post_processor_->Apply(options.add_special_tokens, &ids);
  return ids;
}

std::string BpeTokenizer::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string text;
  Decoder::Chain chain(*decoder_, &text);
  for (const TokenId id : ids) Feed(id, skip_special_tokens, &chain);
  chain.Finish();
  return text;
}

std::unique_ptr<Detokenizer> BpeTokenizer::NewDetokenizer(bool skip_special_tokens) const {
  return std::make_unique<BpeDetokenizer>(*this, skip_special_tokens);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view json,
                                                    const std::string& name_for_errors) {
  try {
    Result<JsonValue> root = ParseJson(json);
    if (!root.ok()) {
      const std::string foreign = ExplainForeignBytes(std::as_bytes(std::span(json)));
      if (foreign.empty()) return root.status().In(name_for_errors);
      return InvalidInput("{}: this is not a tokenizer.json: {}", name_for_errors, foreign);
    }
    Result<std::unique_ptr<Tokenizer>> tokenizer = BpeTokenizer::Make(&*root);
    if (!tokenizer.ok()) return tokenizer.status().In(name_for_errors);
    return tokenizer;
  } catch (const std::bad_alloc&) {
    return Error(Code::kExhausted, "{}: no memory for the tables of the tokenizer",
                 name_for_errors);
  }
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path& tokenizer_json) {
  Result<std::string> json = ReadFile(tokenizer_json, kMaxFileBytes);
  if (!json.ok()) return json.status();
  return Parse(*json, tokenizer_json.string());
}

}  // namespace granule::text
