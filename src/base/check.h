// Checks for bugs of ours, in three tiers. They print where and stop the process: going on would
// corrupt somebody's text. Never used on user input (that is a Status).
//   GRANULE_CHECK            always
//   GRANULE_DCHECK           debug and sanitizer builds
//   GRANULE_EXPENSIVE_CHECK  walkers over whole structures; -DGRANULE_EXPENSIVE_CHECKS=1 (tests)
#pragma once

namespace granule {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace granule

#define GRANULE_CHECK(condition) \
  ((condition) ? (void)0 : ::granule::CheckFailed(__FILE__, __LINE__, #condition))

#ifdef NDEBUG
#define GRANULE_DCHECK(condition) ((void)sizeof(!(condition)))
#else
#define GRANULE_DCHECK(condition) GRANULE_CHECK(condition)
#endif

#if defined(GRANULE_EXPENSIVE_CHECKS) && GRANULE_EXPENSIVE_CHECKS
#define GRANULE_EXPENSIVE_CHECK(condition) GRANULE_CHECK(condition)
#else
#define GRANULE_EXPENSIVE_CHECK(condition) ((void)sizeof(!(condition)))
#endif
