// Oniguruma's Ruby syntax -> PCRE2 (see regex.h for why).
#include <cctype>

#include "text/regex.h"
#include "text/utf8.h"

namespace granule::text {
namespace {

constexpr int kMaxSetDepth = 16;

// Set contents, to stand between brackets.
constexpr std::string_view kSpace = "\\p{White_Space}";
constexpr std::string_view kNotSpace = "\\P{White_Space}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside sets Oniguruma counts the superscript digits and fractions of Latin-1 too.
constexpr std::string_view kWordAlone =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr std::string_view kHex = "0-9a-fA-F";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> Run() {
    while (pos_ < in_.size() && status_.ok()) Item();
    if (!status_.ok()) return status_;
    return std::move(out_);
  }

 private:
  char Peek(size_t ahead = 0) const { return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0'; }
  bool More() const { return pos_ < in_.size(); }

  void Refuse(std::string_view what) {
    if (status_.ok()) {
      status_ =
          InvalidInput("the pattern \"{}\" is not supported: {} at its byte {}", in_, what, pos_);
    }
  }

  // One item outside sets: an atom, an operator, or a quantifier of the atom written last.
  void Item() {
    const char c = Peek();
    switch (c) {
      case '\\':
        atom_ = out_.size();
        Escape(/*in_set=*/false, &out_);
        return;
      case '[':
        atom_ = out_.size();
        Set(0, &out_);
        return;
      case '(':
        Group();
        return;
      case ')':
        // The group is the atom that a quantifier would apply to.
        if (!groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        }
        Copy();
        return;
      case '{':
        Braces();
        return;
      case '*':
      case '+':
      case '?':
      case '|':
      case '^':
      case '$':
        Copy();
        return;
      default:
        atom_ = out_.size();
        Copy();
        return;
    }
  }

  void Copy() { out_.push_back(in_[pos_++]); }

  void Group() {
    groups_.push_back(out_.size());
    Copy();
    if (Peek() != '?') {
      // "(*VERB)" is PCRE2's alone; in Ruby the star has nothing to repeat.
      if (Peek() == '*') Refuse("\"(*\"");
      return;
    }
    Copy();
    const char c = Peek();
    if (c == ':' || c == '=' || c == '!' || c == '>' || c == '<' || c == '#') {
      if (c == '#') Refuse("a comment group");
      Copy();
      return;
    }
    // Inline options. Ruby's m is "dot matches newline", which is s here.
    while (More() && Peek() != ':' && Peek() != ')') {
      const char option = Peek();
      if (option == 'i' || option == '-') {
        Copy();
      } else if (option == 'm') {
        out_.push_back('s');
        ++pos_;
      } else {
        Refuse("a group option other than i and m");
        return;
      }
    }
  }

  // {n}, {n,}, {,m}, {n,m} as Ruby reads them: a following + repeats the whole instead of making it
  // possessive, and {n}? makes it optional instead of lazy. Anything else is a literal brace.
  void Braces() {
    size_t end = pos_ + 1;
    bool comma = false;
    bool low = false;
    bool high = false;
    for (; end < in_.size() &&
           (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ',');
         ++end) {
      if (in_[end] == ',') {
        if (comma) break;
        comma = true;
      } else {
        (comma ? high : low) = true;
      }
    }
    if (end >= in_.size() || in_[end] != '}' || (!low && !high)) {
      atom_ = out_.size();
      out_ += "\\{";
      ++pos_;
      return;
    }
    std::string_view count = in_.substr(pos_ + 1, end - pos_ - 1);
    out_ += low ? "{" : "{0";
    out_ += count;
    out_ += '}';
    pos_ = end + 1;
    if (Peek() == '+' || (Peek() == '?' && !comma)) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
  }

  void Set(int depth, std::string* out) {
    if (depth > kMaxSetDepth) return Refuse("sets nested too deeply");
    if (in_.substr(pos_, 2) == "[:") return Refuse("a POSIX class outside a set");
    ++pos_;  // [
    const bool negated = Peek() == '^';
    if (negated) ++pos_;
    std::vector<std::string> terms;   // of the intersection, each an expression for one character
    std::vector<std::string> nested;  // sets inside the current term
    std::string flat;                 // what stands directly in the current term
    bool simple = true;               // one flat set: keep it as it is
    const auto finish_term = [&] {
      std::string term;
      if (!flat.empty()) term = "[" + flat + "]";
      for (const std::string& set : nested) term += (term.empty() ? "" : "|") + set;
      terms.push_back(term.empty() ? std::string("[^\\x{0}-\\x{10FFFF}]") : "(?:" + term + ")");
      flat.clear();
      nested.clear();
    };
    bool first = true;
    while (true) {
      if (!More()) return Refuse("a set that does not end");
      const char c = Peek();
      if (c == ']' && !first) {
        ++pos_;
        break;
      }
      if (c == '[' && Peek(1) == ':') {
        PosixClass(&flat);
      } else if (c == '[') {
        simple = false;
        nested.emplace_back();
        Set(depth + 1, &nested.back());
      } else if (c == '&' && Peek(1) == '&') {
        simple = false;
        pos_ += 2;
        finish_term();
      } else if (c == '\\') {
        Escape(/*in_set=*/true, &flat);
      } else {
        // A bracket in first place is literal here as in Ruby; PCRE2 gets it escaped.
        if (c == ']' || (c == '^' && flat.empty())) flat += '\\';
        flat += c;
        ++pos_;
      }
      first = false;
      if (!status_.ok()) return;
    }
    if (simple) {
      *out += negated ? "[^" : "[";
      *out += flat + "]";
      return;
    }
    finish_term();
    std::string expression;
    for (size_t i = 1; i < terms.size(); ++i) expression += "(?=" + terms[i] + ")";
    expression += terms[0];
    *out += negated ? "(?:(?!" + expression + ")(?s:.))" : "(?:" + expression + ")";
  }

  void PosixClass(std::string* out) {
    const size_t end = in_.find(":]", pos_);
    const std::string_view name = end == in_.npos ? "" : in_.substr(pos_ + 2, end - pos_ - 2);
    if (name == "space") {
      *out += kSpace;
    } else if (name == "word") {
      *out += kWord;
    } else if (name == "digit") {
      *out += "\\p{Nd}";
    } else if (name == "xdigit") {
      *out += kHex;
    } else {
      return Refuse("a POSIX class other than space, word, digit and xdigit");
    }
    pos_ = end + 2;
  }

  // A backslash and what belongs to it.
  void Escape(bool in_set, std::string* out) {
    if (pos_ + 1 >= in_.size()) return Refuse("a backslash at the end");
    const char c = Peek(1);
    const auto set = [&](std::string_view content) {
      if (!in_set) *out += '[';
      *out += content;
      if (!in_set) *out += ']';
      pos_ += 2;
    };
    const auto keep = [&] {
      *out += in_.substr(pos_, 2);
      pos_ += 2;
    };
    switch (c) {
      case 's':
        return set(kSpace);
      case 'S':
        return set(kNotSpace);
      case 'w':
        return set(in_set ? kWord : kWordAlone);
      case 'h':
        return set(kHex);
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        return keep();
      case 'v':  // one character in Ruby, a class in PCRE2
        *out += "\\x0B";
        pos_ += 2;
        return;
      case 'W':
      case 'H':
        if (in_set) return Refuse("\\W or \\H inside a set");
        *out += "[^";
        *out += c == 'W' ? kWordAlone : kHex;
        *out += ']';
        pos_ += 2;
        return;
      case 'b':
      case 'B': {
        if (in_set) return Refuse("\\b inside a set");
        const std::string word = "[" + std::string(kWordAlone) + "]";
        const bool boundary = c == 'b';
        *out += "(?:(?<=" + word + ")(?" + (boundary ? "!" : "=") + word + ")|(?<!" + word + ")(?" +
                (boundary ? "=" : "!") + word + "))";
        pos_ += 2;
        return;
      }
      case 'A':
      case 'z':
      case 'Z':
      case 'R':
        if (in_set) return Refuse("an anchor inside a set");
        return keep();
      case 'p':
      case 'P':
        return Property(out);
      case 'x':
      case 'u':
        return CodePoint(out);
      default:
        if (std::isalnum(static_cast<unsigned char>(c))) {
          return Refuse(Format("the escape \\{}", c));
        }
        // An escaped character that means itself; it may be longer than one byte.
        *out += '\\';
        ++pos_;
        const size_t begin = pos_;
        NextChar(in_, &pos_);
        if (pos_ - begin > 1) out->pop_back();
        *out += in_.substr(begin, pos_ - begin);
    }
  }

  void Property(std::string* out) {
    const size_t end = in_.find('}', pos_);
    if (Peek(2) != '{' || end == in_.npos) return Refuse("\\p without {...}");
    std::string_view name = in_.substr(pos_ + 3, end - pos_ - 3);
    *out += in_.substr(pos_, 3);
    if (name.starts_with('^')) {
      *out += '^';
      name.remove_prefix(1);
    }
    // Short names are general categories in both engines. Of the long ones only scripts are the
    // same, and only if PCRE2 is told not to look at script extensions; it refuses names it does
    // not know.
    if (name.size() > 2) *out += "sc:";
    *out += name;
    *out += '}';
    pos_ = end + 1;
  }

  // \xHH, \x{H...}, \uHHHH
  void CodePoint(std::string* out) {
    const bool braces = Peek(1) == 'x' && Peek(2) == '{';
    const size_t digits_at = pos_ + (braces ? 3 : 2);
    const size_t most = braces ? 8 : (Peek(1) == 'u' ? 4 : 2);
    size_t end = digits_at;
    while (end < in_.size() && end - digits_at < most &&
           std::isxdigit(static_cast<unsigned char>(in_[end]))) {
      ++end;
    }
    if (end == digits_at || (Peek(1) == 'u' && end - digits_at != 4) ||
        (braces && (end >= in_.size() || in_[end] != '}'))) {
      return Refuse("a malformed code point");
    }
    *out += "\\x{";
    *out += in_.substr(digits_at, end - digits_at);
    *out += '}';
    pos_ = end + (braces ? 1 : 0);
  }

  const std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where in out_ the atom begins that a quantifier would apply to
  std::vector<size_t> groups_;  // where in out_ the open groups begin
  Status status_;
};

}  // namespace

Result<std::string> TranslatePattern(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace granule::text
