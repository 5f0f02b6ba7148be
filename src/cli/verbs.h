// The verbs. Each has a file of its own; main.cc and verbs.cc know nothing about what they do.
#pragma once

#include <chrono>
#include <span>
#include <string>

#include "base/status.h"
#include "cli/command_line.h"

namespace granule::cli {

// One call of granule.
struct Invocation {
  Arguments arguments;
  std::chrono::steady_clock::time_point process_start;
};

// A verb returns its exit code, or the reason why it failed (which main prints).
struct Verb {
  VerbSyntax syntax;
  Result<int> (*run)(const Invocation& invocation);
};

Verb RunVerb();
Verb ImportVerb();
Verb SynthVerb();
Verb InspectVerb();
Verb PlanVerb();
Verb BenchVerb();
Verb TokenizeVerb();
Verb DoctorVerb();
Verb VersionVerb();

// Finds the verb among the words after the program's name, and runs it. Returns the exit code.
int Dispatch(std::span<const std::string> words,
             std::chrono::steady_clock::time_point process_start);

// The exit codes that any verb may end with, for its help.
std::string UsualExitCodes();

// MODEL as a word or as -m MODEL: exactly one of them, once.
Result<std::string> ModelArgument(const VerbSyntax& syntax, const Arguments& arguments);
Flag ModelFlag();

}  // namespace granule::cli
