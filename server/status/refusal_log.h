#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"

namespace millrace::server {

/// A refusal, for users that ask why a job or worker does not start.
struct Refusal {
  enum class Of : uint8_t {
    kWorker = 1,        ///< a Hello
    kContribution = 2,  ///< one contribution of a member
    kShard = 3,         ///< another shard's ShardHello
    kByShard = 4,       ///< this shard's ShardHello, by another one
    kUnreadable = 5,    ///< a message that only a later build knows
  };
  Of of = Of::kWorker;
  std::string job;      ///< as the peer calls it; empty: none
  uint32_t number = 0;  ///< of the worker or shard, as the peer reports it
  std::string software;
  ErrorCode code = ErrorCode::kInternal;
  std::string sentence;  ///< the last one
  uint64_t count = 0;
  TimeNs first = 0;
  TimeNs last = 0;
};

/// Returns "worker", "contribution", ...
std::string_view refused_name(Refusal::Of of);

/// Holds the latest refusals. Those of one peer over one job for one code are one entry. So a peer that tries again ten
/// times a second does not push out the others.
///
/// Memory  kMax entries, of a name, a software name and a sentence each: some 100 KiB at most. Beyond, the entry whose
///         last repetition is oldest is dropped: a peer that connects under ever new names can push out all others.
class RefusalLog {
 public:
  static constexpr size_t kMax = 64;

  /// Adds a refusal; its count, first and last are not looked at.
  void note(Refusal refusal, TimeNs now);
  /// Returns the refusals, the latest first.
  std::vector<Refusal> all() const;

 private:
  std::vector<Refusal> entries_;
};

}  // namespace millrace::server
