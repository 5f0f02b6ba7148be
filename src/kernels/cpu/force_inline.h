// GRANULE_INLINE (functions) and GRANULE_LAMBDA (after a lambda's parameters): inlined at every
// optimisation level, because a call would spill the registers that a kernel lives in. Not under
// AddressSanitizer: every inlined copy is instrumented, and one isa_*.cc then takes minutes and a
// gigabyte to compile.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define GRANULE_CALLS_ARE_FINE 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRANULE_CALLS_ARE_FINE 1
#endif
#endif

#ifdef GRANULE_CALLS_ARE_FINE
#define GRANULE_INLINE inline
#define GRANULE_LAMBDA
#else
#define GRANULE_INLINE inline __attribute__((always_inline))
#define GRANULE_LAMBDA __attribute__((always_inline))
#endif
