#pragma once

#include <string>
#include <vector>

#include "worker/peer/collectives/allreduce.h"

namespace millrace::peer {

using Boundaries = AllreduceSettings::Boundaries;

inline const std::vector<std::string>& boundaries_names() {
  static const std::vector<std::string> names = {"averaged", "pooled", "equal"};
  return names;
}

/// REQUIRES: one of boundaries_names().
inline Boundaries boundaries_of(const std::string& name) {
  return name == "pooled" ? Boundaries::kPooled : name == "equal" ? Boundaries::kEqual : Boundaries::kAveraged;
}

}  // namespace millrace::peer
