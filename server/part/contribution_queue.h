#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "kernels/base/clock.h"
#include "kernels/stream/shared_stream.h"
#include "protocol/messages/messages.h"
#include "server/base/memory_account.h"

namespace millrace::server {

/// A contribution that was admitted and not counted yet.
struct OpenContribution {
  uint64_t incarnation = 0;
  uint64_t sequence = 0;  ///< mode asynchronous
  uint64_t hash = 0;
  double weight = 1;
  double entered = 0;  ///< audit, this and the next two: as the worker reports
  double lost = 0;
  double imbalance = 0;
  SharedStream stream;  ///< empty until its DecodeTask is back
  MemoryCharge charge;

  bool is_decoded() const { return stream.owner != nullptr; }
};

/// Says how the shard treats a contribution.
enum class Admission : uint8_t {
  kAdmit,      ///< the slot is empty and the step open
  kDuplicate,  ///< the same bytes are here; mode asynchronous: or were counted
  kConflict,   ///< other bytes are here under the same identity
  kDecided,    ///< the step is decided: answered by kept() or settled()
  kAhead,      ///< beyond decided + staleness + 1
};

/// Mode asynchronous: contributions to one part that wait for their turn; each will be a step of its own.
///
/// Two rules hold here. A contribution that was counted is not counted again (R16a). Those of one worker's incarnation
/// are counted in the order of their numbers, without a gap (R16b). So the count of an incarnation's contributions
/// identifies them.
///
/// A contribution that arrives out of order waits for the missing ones; of each incarnation at most staleness + 2 wait.
/// Those that may be counted take their turns in the order of arrival.
class Arrivals {
 public:
  explicit Arrivals(uint32_t staleness) : staleness_(staleness) {}

  struct Arrival {
    uint32_t worker = 0;
    TimeNs at = 0;
    OpenContribution open;
  };

  /// Judges a contribution; changes nothing.
  ///
  /// counted  the summary's entry of the worker; nullptr: none.
  Admission judge(uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t hash,
                  const protocol::SummaryEntry* counted) const;
  /// Returns the first number of that incarnation that neither was counted nor has been taken.
  uint64_t next_of(uint32_t worker, uint64_t incarnation, const protocol::SummaryEntry* counted) const;

  /// REQUIRES: judge() returned kAdmit.
  void admit(uint32_t worker, OpenContribution open, TimeNs now, const protocol::SummaryEntry* counted);
  /// Takes the decoded stream. False: the contribution does not wait here any more, or was decoded already.
  bool decoded(uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t hash, SharedStream stream,
               MemoryCharge charge);
  /// Drops a contribution that does not decode: its place is empty again. False as above.
  bool reject(uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t hash);

  /// Returns whether a contribution may be counted once it is decoded.
  bool any_in_order() const { return !in_order_.empty(); }
  /// Returns the contribution that has waited longest of those that may be counted; empty: there is none, or it is not
  /// decoded yet.
  std::optional<Arrival> take();

  /// R7a: Keeps only the contributions of these members' incarnations. Returns how many of others were dropped.
  uint64_t keep(std::span<const protocol::Member> members);

 private:
  struct Waiting {
    uint64_t arrival = 0;
    TimeNs at = 0;
    OpenContribution open;
  };
  /// Of the present incarnation of a worker. It stays when it is empty: a contribution that was taken may not be in the
  /// summary yet.
  struct Line {
    uint64_t incarnation = 0;
    uint64_t next = 0;                    ///< the number that may be counted
    std::map<uint64_t, Waiting> waiting;  ///< by number
  };
  Waiting* find(uint32_t worker, uint64_t incarnation, uint64_t sequence, uint64_t hash);

  uint32_t staleness_ = 0;
  uint64_t next_arrival_ = 0;
  std::map<uint32_t, Line> lines_;         ///< by worker
  std::map<uint64_t, uint32_t> in_order_;  ///< workers whose next number is here, by its turn
};

}  // namespace millrace::server
