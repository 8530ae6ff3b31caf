#pragma once

#include <cstdint>
#include <unordered_map>

#include "kernels/base/clock.h"
#include "protocol/keys/key.h"

namespace millrace::server {

/// Bounds the Hellos for which a shard reads or writes the table: that can take milliseconds, during which no job
/// continues. Counts by key. A Hello of a member that connects again needs no table and is not counted. Pure.
class HelloLimit {
 public:
  static constexpr double kPerSecond = 200;
  static constexpr double kBurst = 2'000;
  /// Added for a Hello that is refused afterwards: it will be repeated, or is hostile.
  static constexpr double kOfRefused = 10;

  /// Returns whether a Hello of this key may reach the table, and counts it if so.
  bool take(const protocol::PublicKey& key, TimeNs now);
  /// Counts that it was refused there.
  void count_refusal(const protocol::PublicKey& key, TimeNs now);

 private:
  struct Bucket {
    double hellos = kBurst;
    TimeNs at = 0;
  };
  Bucket& bucket_of(const protocol::PublicKey& key, TimeNs now);
  std::unordered_map<protocol::PublicKey, Bucket> buckets_;  ///< of allowed keys
};

}  // namespace millrace::server
