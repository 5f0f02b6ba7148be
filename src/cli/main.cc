// granule VERB ...
#include <chrono>
#include <string>
#include <vector>

#include "cli/terminal.h"
#include "cli/verbs.h"

int main(int argc, char** argv) {
  const auto process_start = std::chrono::steady_clock::now();
  granule::cli::PrepareStreams();
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  return granule::cli::Dispatch(words, process_start);
}
