#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "protocol/messages/log_digest.h"

namespace millrace::server {

/// The digests of one part's log after its last steps: members' reports are compared with them. The present
/// one is in the part's summary, and comes with it wherever the summary comes from.
///
/// Memory  520 bytes. The last kReach steps: a member that is further behind is compared once it is nearer.
class LogDigests {
 public:
  static constexpr uint64_t kReach = 64;

  /// Records the digest after n steps. If n is not the next number, the log was taken over from another process:
  /// earlier digests are not known here.
  void record(uint64_t n, uint64_t digest) {
    if (n != n_ + 1) first_ = n;
    n_ = n;
    ring_[n % kReach] = digest;
  }
  /// Returns the last recorded n; 0: none.
  uint64_t last() const { return n_; }
  /// Returns the digest after n steps. Empty: not recorded, or too long ago.
  std::optional<uint64_t> after(uint64_t n) const {
    if (n > n_ || n < first_ || n_ - n >= kReach) return std::nullopt;
    return ring_[n % kReach];
  }

 private:
  std::array<uint64_t, kReach> ring_ = {protocol::kLogDigestStart};
  uint64_t n_ = 0;
  uint64_t first_ = 0;
};

}  // namespace millrace::server
