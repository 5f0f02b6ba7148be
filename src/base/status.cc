#include "base/status.h"

namespace granule {

int ExitCode(Code code) {
  switch (code) {
    case Code::kOk:
      return 0;
    case Code::kUsage:
      return 2;
    case Code::kInvalidInput:
    case Code::kCapacityExceeded:
      return 3;
    case Code::kExhausted:
    case Code::kUnavailable:
    case Code::kPoisoned:
    case Code::kDeviceLost:
      return 4;
    case Code::kInterrupted:
      return 130;
    case Code::kInternal:
      return 1;
  }
  return 1;
}

const char* CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kUsage:
      return "usage";
    case Code::kInvalidInput:
      return "invalid input";
    case Code::kCapacityExceeded:
      return "capacity exceeded";
    case Code::kExhausted:
      return "resource exhausted";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kPoisoned:
      return "poisoned";
    case Code::kDeviceLost:
      return "device lost";
    case Code::kInterrupted:
      return "interrupted";
    case Code::kInternal:
      return "internal error";
  }
  return "unknown";
}

}  // namespace granule
