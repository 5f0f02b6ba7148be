#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace granule {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "granule: bug: %s:%d: this must hold: %s\n", file, line, condition);
  std::abort();
}

}  // namespace granule
