#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>

namespace millrace::peer {

/// Limits of a child, and what it took.
struct ChildLimits {
  uint64_t memory_bytes_max = uint64_t{8} << 30;
  uint32_t processor_s_max = 600;
};

/// What `work` returns, from a child process of its own, with "peak_mb" (its resident set) and "processor_s" added; and
/// "error" where it failed: what it threw, no memory within the limit, or its time.
///
/// REQUIRES: one thread; what `work` returns is an object.
nlohmann::json run_in_child(const ChildLimits& limits, const std::function<nlohmann::json()>& work);

}  // namespace millrace::peer
