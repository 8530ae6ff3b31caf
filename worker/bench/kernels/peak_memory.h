#pragma once

#include <cstdint>
#include <optional>

namespace millrace::bench {

/// Measures the peak memory that this process has taken since this object was made. The system counts it: touched
/// pages. The memory of other threads counts too.
class PeakMemory {
 public:
  PeakMemory();

  /// Returns the bytes. Empty: the system does not say.
  std::optional<uint64_t> bytes() const;

 private:
  std::optional<uint64_t> before_;
};

}  // namespace millrace::bench
