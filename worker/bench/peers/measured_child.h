#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>

namespace millrace::peer {

/// Holds the limits of a child process.
struct ChildLimits {
  uint64_t memory_bytes_max = uint64_t{8} << 30;
  uint32_t processor_s_max = 600;
};

/// Runs `work` in a child process of its own, and returns its object with "peak_mb" (its resident set) and
/// "processor_s" added. Where it failed, "error" has the exception, the lack of memory within the limit, or the
/// time-out. REQUIRES: one thread; `work` returns an object.
nlohmann::json run_in_child(const ChildLimits& limits, const std::function<nlohmann::json()>& work);

}  // namespace millrace::peer
