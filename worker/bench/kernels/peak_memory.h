#pragma once

#include <cstdint>
#include <optional>

namespace millrace::cli {

/// The most memory that this process has taken over what it had when this was made, as the system counts it: pages that
/// were touched. What other threads take counts too.
class PeakMemory {
 public:
  PeakMemory();

  /// Bytes. Empty: the system does not say.
  std::optional<uint64_t> bytes() const;

 private:
  std::optional<uint64_t> before_;
};

}  // namespace millrace::cli
