#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>

namespace granule::cli {
namespace {

constexpr size_t kWidth = 80;
constexpr size_t kFlagColumn = 26;  // where the help of a flag starts

const Flag* FindFlag(const VerbSyntax& syntax, std::string_view name) {
  for (const Flag& flag : syntax.flags) {
    if (std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) return &flag;
  }
  return nullptr;
}

// CLI11 knows "-x" and "--word". llama.cpp's spelling has "-ub" too; and "--word=" shall mean an
// empty value. Rewrites both, leaving alone the words that are values.
std::vector<std::string> Normalise(const VerbSyntax& syntax, std::span<const std::string> words) {
  std::vector<std::string> out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      out.insert(out.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    const Flag* flag = FindFlag(syntax, word);
    if (flag != nullptr) {
      out.push_back(flag->key());
      if (!flag->value.empty() && i + 1 < words.size()) out.push_back(words[++i]);
      continue;
    }
    if (word.size() > 3 && word.starts_with("--") && word.ends_with("=")) {
      flag = FindFlag(syntax, std::string_view(word).substr(0, word.size() - 1));
      if (flag != nullptr && !flag->value.empty()) {
        out.push_back(flag->key());
        out.emplace_back();
        continue;
      }
    }
    out.push_back(word);
  }
  return out;
}

Status UnknownFlag(const VerbSyntax& syntax, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  if (const char* why = WhyFlagIsNotBuilt(name); why != nullptr) {
    return Error(Code::kUsage, "{}: {}", name, why);
  }
  std::vector<std::string> known;
  for (const Flag& flag : syntax.flags) {
    known.insert(known.end(), flag.names.begin(), flag.names.end());
  }
  const std::string closest = Closest(name, known);
  if (!closest.empty()) {
    return Error(Code::kUsage, "unknown flag {}; did you mean {}?", name, closest);
  }
  return Error(Code::kUsage, "unknown flag {}; `granule {} --help` lists all", name, syntax.name);
}

Status Leftover(const VerbSyntax& syntax, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word.size() > 1 && word.front() == '-' && word != "--") return UnknownFlag(syntax, word);
  }
  for (const std::string& word : words) {
    if (word == "--") continue;
    if (syntax.positionals.empty()) {
      return Error(Code::kUsage, "unexpected word \"{}\": {} takes flags only", word, syntax.name);
    }
    return Error(
        Code::kUsage,
        "unexpected word \"{}\": usage is `granule {} {}` (put text with blanks in quotes)", word,
        syntax.name, syntax.usage);
  }
  return {};
}

Status ParseWithCli11(const VerbSyntax& syntax, std::vector<std::string> words, Arguments& out) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  CLI::Option* help = app.add_flag("-h,--help")->disable_flag_override();
  std::vector<std::pair<const Flag*, CLI::Option*>> options;
  for (const Flag& flag : syntax.flags) {
    std::string names;
    for (const std::string& name : flag.names) {
      if (name.size() > 2 && name[1] != '-') continue;  // rewritten by Normalise
      names += (names.empty() ? "" : ",") + name;
    }
    CLI::Option* option = flag.value.empty() ? app.add_flag(names) : app.add_option(names);
    if (flag.value.empty()) option->disable_flag_override();
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    options.emplace_back(&flag, option);
  }
  std::vector<CLI::Option*> positionals;
  for (const std::string& name : syntax.positionals) positionals.push_back(app.add_option(name));

  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  app.parse(std::move(words));

  out.help = help->count() > 0;
  if (out.help) return {};
  if (Status s = Leftover(syntax, app.remaining()); !s.ok()) return s;
  for (const auto& [flag, option] : options) {
    if (option->count() == 0) continue;
    out.flags[flag->key()] = flag->value.empty() ? std::string() : option->results().back();
  }
  for (const CLI::Option* option : positionals) {
    if (option->count() > 0) out.positionals.push_back(option->results().front());
  }
  return {};
}

}  // namespace

std::optional<std::string> Arguments::Find(std::string_view key) const {
  const auto it = flags.find(key);
  if (it == flags.end()) return std::nullopt;
  return it->second;
}

Result<Arguments> ParseArguments(const VerbSyntax& syntax, std::span<const std::string> words) {
  std::vector<std::string> normal = Normalise(syntax, words);
  for (const std::string& word : normal) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    const Flag* flag = FindFlag(syntax, std::string_view(word).substr(0, equals));
    if (flag != nullptr && flag->value.empty()) {
      return Error(Code::kUsage, "{} is a switch and takes no value: found {}", flag->key(), word);
    }
  }
  // A flag at the very end whose value is missing: CLI11 would say so in its own words.
  if (!normal.empty() && (normal.size() < 2 || normal[normal.size() - 2] != "--")) {
    const Flag* last = FindFlag(syntax, normal.back());
    const bool is_value = normal.size() >= 2 && [&] {
      const Flag* before = FindFlag(syntax, normal[normal.size() - 2]);
      return before != nullptr && !before->value.empty();
    }();
    if (last != nullptr && !last->value.empty() && !is_value) {
      return Error(Code::kUsage, "{} needs a value: {}", normal.back(), last->help);
    }
  }
  Arguments arguments;
  try {
    if (Status s = ParseWithCli11(syntax, std::move(normal), arguments); !s.ok()) return s;
  } catch (const CLI::ArgumentMismatch& e) {
    return Error(Code::kUsage, "{}; `granule {} --help` shows how it is used", e.what(),
                 syntax.name);
  } catch (const CLI::Error& e) {
    return Error(Code::kUsage, "{}; `granule {} --help` lists what is accepted", e.what(),
                 syntax.name);
  }
  return arguments;
}

std::string Wrap(std::string_view text, size_t width, size_t indent) {
  std::string out;
  size_t column = indent;
  while (!text.empty()) {
    const size_t blank = text.find(' ');
    const std::string_view word = text.substr(0, blank);
    text.remove_prefix(blank == std::string_view::npos ? text.size() : blank + 1);
    if (word.empty()) continue;
    if (column > indent && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

std::string HelpText(const VerbSyntax& syntax) {
  std::string out = "granule " + syntax.name + ": " + syntax.purpose + "\n\n";
  const std::string usage = "Usage: granule " + syntax.name + " ";
  out += usage + Wrap(syntax.usage, kWidth, usage.size()) + "\n";
  if (!syntax.examples.empty()) out += "\nExamples:\n";
  for (const Example& example : syntax.examples) {
    out += "  " + example.command + "\n      " + Wrap(example.effect, kWidth, 6) + "\n";
  }
  std::vector<std::string> groups;
  for (const Flag& flag : syntax.flags) {
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end()) {
      groups.push_back(flag.group);
    }
  }
  for (const std::string& group : groups) {
    out += "\n" + group + ":\n";
    for (const Flag& flag : syntax.flags) {
      if (flag.group != group) continue;
      std::string head = "  ";
      for (const std::string& name : flag.names) head += (head.size() > 2 ? ", " : "") + name;
      if (!flag.value.empty()) head += " " + flag.value;
      if (head.size() + 2 > kFlagColumn) {
        head += "\n" + std::string(kFlagColumn, ' ');
      } else {
        head.resize(kFlagColumn, ' ');
      }
      out += head + Wrap(flag.help, kWidth, kFlagColumn) + "\n";
    }
  }
  out += "\nExit codes:\n" + syntax.exit_codes;
  return out;
}

Flag LeverFlag(LeverId id, std::string group) {
  const Lever& lever = GetLever(id);
  Flag flag;
  if (*lever.short_flag != '\0') flag.names.emplace_back(lever.short_flag);
  flag.names.emplace_back(lever.flag);
  flag.value = lever.value;
  flag.group = std::move(group);
  flag.help = Format("{}. Accepted: {}. Default: {} ({})", lever.help, lever.accepted,
                     lever.fallback, lever.environment);
  return flag;
}

std::string Closest(std::string_view word, std::span<const std::string> candidates) {
  // Levenshtein distance, one row at a time.
  const auto distance = [&](std::string_view other) {
    std::vector<size_t> row(other.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= other.size(); ++j) {
        const size_t substituted = diagonal + (word[i - 1] == other[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    return row.back();
  };
  std::string best;
  size_t best_distance = word.size() / 3 + 1;  // one wrong letter in three is still the same word
  for (const std::string& candidate : candidates) {
    if (candidate.size() <= 2) continue;  // every short flag is close to every other
    const size_t d = distance(candidate);
    // llama.cpp's long spelling of a short name, and shortened words, count as close.
    if (d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  if (best.empty() && word.size() >= 5) {
    for (const std::string& candidate : candidates) {
      if (candidate.starts_with(word)) return candidate;
    }
  }
  return best;
}

}  // namespace granule::cli
