#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "worker/peer/collectives/allreduce.h"

namespace millrace::peer {

using Boundaries = AllreduceSettings::Boundaries;

/// Returns the names in the order of their numbers, which begin with 1.
inline const std::vector<std::string>& boundaries_names() {
  static const std::vector<std::string> names = {"averaged", "pooled", "equal"};
  return names;
}

inline const std::string& boundaries_name(Boundaries boundaries) {
  return boundaries_names().at(static_cast<size_t>(boundaries) - 1);
}

/// REQUIRES: one of boundaries_names().
inline Boundaries boundaries_of(const std::string& name) {
  return name == "pooled" ? Boundaries::kPooled : name == "equal" ? Boundaries::kEqual : Boundaries::kAveraged;
}

}  // namespace millrace::peer
