// A verb's flags as data: parsed (by CLI11), explained (--help) and corrected (the closest name)
// from the same table. Values stay text here; base/levers.h and the verbs read them strictly.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/levers.h"
#include "base/status.h"

namespace granule::cli {

struct Flag {
  std::vector<std::string> names;  // as shown; the last one is the key: {"-n", "--n-predict"}
  std::string value;               // what stands for the value in help; empty = a switch
  std::string group;               // heading in help
  std::string help;                // what it does, accepted values, default

  const std::string& key() const { return names.back(); }
};

struct Example {
  std::string command;
  std::string effect;
};

struct VerbSyntax {
  std::string name;
  std::string purpose;  // one line
  std::vector<std::string> positionals =
      {};             // "MODEL"; every one may be left out here, verbs check
  std::string usage;  // what follows the name: "MODEL -p TEXT [options]"
  std::vector<Flag> flags = {};
  std::vector<Example> examples = {};
  std::string exit_codes = {};  // lines "N  meaning"
};

struct Arguments {
  FlagTexts flags;  // by key; a switch has an empty text
  std::vector<std::string> positionals;
  bool help = false;

  bool Has(std::string_view key) const { return flags.contains(key); }
  std::optional<std::string> Find(std::string_view key) const;
};

// Splits the words after the verb. Unknown flags, missing values and surplus words are kUsage, in
// words, with the closest flag where one is close.
Result<Arguments> ParseArguments(const VerbSyntax& syntax, std::span<const std::string> words);

// Wrapped at 80 columns.
std::string HelpText(const VerbSyntax& syntax);

// The flag of a lever, with accepted values and default in its help.
Flag LeverFlag(LeverId id, std::string group);

// The candidate with the smallest edit distance, when it is small for the word's length; else "".
std::string Closest(std::string_view word, std::span<const std::string> candidates);

// Breaks text into lines of at most `width` columns at blanks; every line but the first is
// indented.
std::string Wrap(std::string_view text, size_t width, size_t indent);

}  // namespace granule::cli
