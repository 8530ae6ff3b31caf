#include "server/status/wait.h"

namespace millrace::server {

std::string_view wait_name(Wait wait) {
  switch (wait) {
    case Wait::kNothing: return "";
    case Wait::kJoin: return "join";
    case Wait::kHello: return "hello";
    case Wait::kContributions: return "contributions";
    case Wait::kDeadline: return "deadline";
    case Wait::kMagnitudes: return "magnitudes";
    case Wait::kStore: return "store";
    case Wait::kAcknowledgements: return "acknowledgements";
    case Wait::kMemory: return "memory";
    case Wait::kComputing: return "computing";
    case Wait::kRecovery: return "recovery";
    case Wait::kWeights: return "weights";
  }
  return "";
}

}  // namespace millrace::server
