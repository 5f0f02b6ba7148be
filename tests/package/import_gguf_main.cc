// import_gguf SRC DST [--overwrite]: the import alone, for the Python tests of this folder.
#include <cstdio>
#include <string>

#include "package/import_gguf.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: import_gguf SRC DST [--overwrite]\n");
    return 2;
  }
  granule::package::ImportOptions options;
  options.overwrite = argc > 3 && std::string(argv[3]) == "--overwrite";
  granule::Result<granule::package::ImportReport> report =
      granule::package::ImportGguf(argv[1], argv[2], options);
  if (!report.ok()) {
    std::fprintf(stderr, "%s\n", report.status().message().c_str());
    return granule::ExitCode(report.status().code());
  }
  for (const std::string& warning : report->warnings)
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  std::printf("%lld tensors, %llu bytes -> %llu bytes\n", static_cast<long long>(report->tensors),
              static_cast<unsigned long long>(report->source_bytes),
              static_cast<unsigned long long>(report->written_bytes));
  return 0;
}
