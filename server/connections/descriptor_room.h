#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "server/base/limits.h"

namespace millrace::server {

/// Divides the descriptors that a shard's process may have. Pure: they are counted elsewhere.
///
///     0 ..................... in use ............... connections | kRefused | kept |
///                                                                ^          ^      ^ limit
///                                                      may_admit_until  accept_below
///
/// The last `kept` are never a connection's: HTTP, other shards, the table and saves need them. The connections just
/// below are accepted so that a worker can receive the reason of its refusal.
class DescriptorRoom {
 public:
  struct Options {
    uint64_t limit = 0;   ///< of open files
    uint32_t shards = 1;  ///< of the cluster: each is a connection
    std::function<std::optional<uint64_t>()> count = {};
    std::function<uint64_t()> accepted = [] { return uint64_t{0}; };  ///< connections since the process began
  };
  explicit DescriptorRoom(Options options);

  /// Returns whether the process can serve one worker at all. Errors  limit_exceeded, with the required number.
  Status judge_start() const;
  /// Returns one sentence where fewer workers fit than the configured limits allow; else empty.
  std::string warning(const Limits& limits) const;
  /// Returns whether another worker may become a member. Errors  limit_exceeded: too few descriptors would be left.
  Status judge_worker(TimeNs now);
  /// Returns the lowest descriptor number whose connection is not to be accepted.
  uint64_t accept_below() const;

 private:
  uint64_t may_admit_until() const;

  Options options_;
  uint64_t kept_ = 0;
  std::optional<uint64_t> used_;  ///< as last counted
  uint64_t accepted_ = 0;         ///< before that count: as many descriptors may have come since as connections did
  TimeNs counted_at_ = 0;
};

}  // namespace millrace::server
