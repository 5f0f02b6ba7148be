#include "cli/command_line.h"

#include <gtest/gtest.h>

namespace granule::cli {
namespace {

VerbSyntax Syntax() {
  return {.name = "run",
          .purpose = "continues a prompt",
          .positionals = {"MODEL"},
          .usage = "MODEL -p TEXT [options]",
          .flags = {{{"-m", "--model"}, "MODEL", "Input", "the model"},
                    {{"-p", "--prompt"}, "TEXT", "Input", "the prompt"},
                    {{"-n", "--n-predict"}, "N", "Output", "how many tokens"},
                    {{"--temp"}, "T", "Output", "how warm"},
                    {{"--json"}, "", "Output", "one object"},
                    {{"-v", "--verbose"}, "", "Output", "says more"},
                    LeverFlag(LeverId::kUbatchSize, "Memory"),
                    LeverFlag(LeverId::kKvLayout, "Memory")},
          .examples = {{"granule run m -p hi", "says something"}},
          .exit_codes = "  0  done\n"};
}

Result<Arguments> Parse(std::vector<std::string> words) { return ParseArguments(Syntax(), words); }

void ExpectUsage(std::vector<std::string> words, const std::string& expected) {
  const Result<Arguments> arguments = Parse(std::move(words));
  ASSERT_FALSE(arguments.ok()) << expected;
  EXPECT_EQ(arguments.status().code(), Code::kUsage);
  EXPECT_NE(arguments.status().message().find(expected), std::string::npos)
      << arguments.status().message();
}

TEST(CommandLine, FlagsPositionalsAndSwitchesInAnyOrder) {
  const Result<Arguments> a = Parse({"-p", "hi there", "folder", "-n", "-1", "--json", "-v"});
  ASSERT_TRUE(a.ok()) << a.status().message();
  EXPECT_EQ(a->positionals, std::vector<std::string>{"folder"});
  EXPECT_EQ(a->Find("--prompt"), "hi there");
  EXPECT_EQ(a->Find("--n-predict"), "-1");
  EXPECT_TRUE(a->Has("--json"));
  EXPECT_TRUE(a->Has("--verbose"));
  EXPECT_FALSE(a->Has("--temp"));
  EXPECT_EQ(a->Find("--temp"), std::nullopt);
}

TEST(CommandLine, ValuesAreTakenAsTheyStand) {
  const auto prompt = [](std::vector<std::string> words) {
    const Result<Arguments> a = Parse(std::move(words));
    EXPECT_TRUE(a.ok()) << a.status().message();
    return a.ok() ? a->Find("--prompt").value_or("(none)") : "(error)";
  };
  EXPECT_EQ(prompt({"m", "-p", ""}), "");
  EXPECT_EQ(prompt({"m", "-p", "-ub"}), "-ub");
  EXPECT_EQ(prompt({"m", "-p", "--json"}), "--json");
  EXPECT_EQ(prompt({"m", "-p", "[1,2]"}), "[1,2]");
  EXPECT_EQ(prompt({"m", "-p", "--"}), "--");
  EXPECT_EQ(prompt({"m", "-p", "a\nb\\n\"c\""}), "a\nb\\n\"c\"");
  EXPECT_EQ(prompt({"m", "--prompt=a=b"}), "a=b");
  EXPECT_EQ(prompt({"m", "--prompt="}), "");
  EXPECT_EQ(prompt({"m", "-p", "one", "-p", "two"}), "two");
}

TEST(CommandLine, TwoLetterShortFlagOfLlamaCpp) {
  const Result<Arguments> a = Parse({"m", "-ub", "7"});
  ASSERT_TRUE(a.ok()) << a.status().message();
  EXPECT_EQ(a->Find("--ubatch-size"), "7");
}

TEST(CommandLine, UnknownFlagsNameTheClosest) {
  ExpectUsage({"m", "--promt", "x"}, "did you mean --prompt?");
  ExpectUsage({"m", "--kv-layuot=x"}, "did you mean --kv-layout?");
  ExpectUsage({"m", "--zzz"}, "unknown flag --zzz");
  ExpectUsage({"m", "-z"}, "unknown flag -z");
  ExpectUsage({"--zzz", "foo", "m"}, "unknown flag --zzz");
}

TEST(CommandLine, FlagsThatAreNotBuiltAreRefusedByName) {
  ExpectUsage({"m", "--kv-dtype=fp16"}, "--kv-dtype: ");
  EXPECT_EQ(HelpText(Syntax()).find("kv-dtype"), std::string::npos);
}

TEST(CommandLine, MissingValuesAndSurplusWords) {
  ExpectUsage({"m", "-p"}, "--prompt needs a value");
  ExpectUsage({"-n"}, "--n-predict needs a value");
  ExpectUsage({"m", "-ub"}, "--ubatch-size needs a value");
  ExpectUsage({"m", "hello"}, "unexpected word \"hello\"");
  ExpectUsage({"m", "--json=yes"}, "--json");
}

TEST(CommandLine, HelpWinsOverEverythingElse) {
  for (const char* flag : {"-h", "--help"}) {
    const Result<Arguments> a = Parse({flag, "--nonsense"});
    ASSERT_TRUE(a.ok());
    EXPECT_TRUE(a->help);
  }
}

TEST(CommandLine, HelpFitsATerminalAndNamesEveryFlagWithDefaults) {
  const std::string help = HelpText(Syntax());
  size_t begin = 0;
  for (size_t end = help.find('\n'); end != std::string::npos; end = help.find('\n', begin)) {
    EXPECT_LE(end - begin, 80u) << help.substr(begin, end - begin);
    begin = end + 1;
  }
  for (const Flag& flag : Syntax().flags) {
    EXPECT_NE(help.find(flag.key()), std::string::npos) << flag.key();
  }
  EXPECT_NE(help.find("Default: 512"), std::string::npos);
  EXPECT_NE(help.find("GRANULE_KV_LAYOUT"), std::string::npos);
  EXPECT_NE(help.find("stripe:G"), std::string::npos);
  EXPECT_NE(help.find("Exit codes:\n  0  done"), std::string::npos);
}

TEST(CommandLine, Closest) {
  const std::vector<std::string> verbs = {"run", "import", "inspect", "doctor", "tokenize"};
  EXPECT_EQ(Closest("inspct", verbs), "inspect");
  EXPECT_EQ(Closest("rnu", verbs), "");
  EXPECT_EQ(Closest("token", verbs), "tokenize");
  EXPECT_EQ(Closest("frobnicate", verbs), "");
}

}  // namespace
}  // namespace granule::cli
