#pragma once

#include <cstdint>
#include <unordered_map>

#include "kernels/base/clock.h"
#include "protocol/keys/key.h"

namespace millrace::server {

/// Bounds the bytes that each key sends in a time, by a bucket for a second of its rate. A message of any size
/// passes where the bucket is not empty; the bucket may be negative afterwards: the key is in debt. Pure.
class RateLimit {
 public:
  /// The treatment of a message.
  enum class Verdict : uint8_t {
    kPasses = 1,
    kOver = 2,  ///< the key is in debt
    /// It is, and has sent kOverdraft times its debt: its senders ignore the refusals. A charged message counts charged
    /// ones alone: a worker that repeats refused contributions is not ended by its heartbeats. Due ones do not count.
    kFloods = 3,
  };
  /// Bytes that a key may send while in debt: this many times its debt at the beginning and a second of its rate.
  /// A worker repeats a refused contribution at growing intervals.
  static constexpr double kOverdraft = 64;

  /// Whether a key's rate was set.
  bool knows(const protocol::PublicKey& key) const { return buckets_.contains(key); }
  /// Sets the rate of a key; its bucket stays as it is, and a new one is full. infinity: none.
  void set(const protocol::PublicKey& key, double bytes_per_s, TimeNs now);
  /// Counts a message that can wait until the key is out of debt. Where it passes its bytes are taken from the bucket.
  Verdict take(const protocol::PublicKey& key, uint64_t bytes, TimeNs now);
  /// Counts a message that passes in any case: its bytes are taken from the bucket. Never kOver.
  Verdict charge(const protocol::PublicKey& key, uint64_t bytes, TimeNs now);
  /// The same for a message that the protocol requires now, however large: it is no flood, and belongs to none.
  void charge_due(const protocol::PublicKey& key, uint64_t bytes, TimeNs now);

 private:
  struct Bucket {
    double bytes_per_s = 0;
    double bytes = 0;
    TimeNs at = 0;
    double debt_bytes = 0;     ///< at the first message in debt
    double in_debt_bytes = 0;  ///< that came since then
    double charged_bytes = 0;  ///< of them, those of charged messages
  };
  static void fill(Bucket& bucket, TimeNs now);
  Bucket* limited(const protocol::PublicKey& key, TimeNs now);
  static void lengthen_debt(Bucket& bucket, uint64_t bytes);
  static double count_in_debt(Bucket& bucket, uint64_t bytes);
  std::unordered_map<protocol::PublicKey, Bucket> buckets_;
};

}  // namespace millrace::server
