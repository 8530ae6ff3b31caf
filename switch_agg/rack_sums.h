#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/window_code.h"
#include "switch_agg/window_sum.h"

namespace millrace::switch_agg {

/// Where partial sums go. `header` has all fields but life, worker and sequence; `payload` is valid within the call.
class PartialSink {
 public:
  virtual ~PartialSink() = default;
  virtual void partial(const protocol::DatagramHeader& header, const protocol::PartialTerms& terms,
                       ByteSpan payload) = 0;
};

/// The soft state of a rack's switch in role `combine` (SWITCH.md, section 7): sums of the rack's units, one a key
/// (epoch, slot, turn,
/// fragment), best effort. It may forget all of it at any time: workers resend past it, and the shard alone decides.
///
/// A sum must fit one packet, as a PARTIAL has no fragments of its own: a unit that might make it larger sends the sum
/// as it is, and
/// begins another. Bounds are for the worst code, so that what was added can always be sent.
///
/// Memory   cells x window_indices x (4 B + 2 bit), made once; a key has one cell where it may be.
/// Threads  one at a time.
class RackSums {
 public:
  struct Options {
    uint32_t cells = 64;
    uint32_t window_indices = 0;
    uint32_t payload_bytes_max = 1368;  ///< of a PARTIAL
    int32_t headroom = 0;               ///< (2^31 - 1) / workers of the whole job: sums of a rack cannot leave i32
  };

  enum class Verdict : uint8_t {
    kAdded,      ///< in a sum, which may have been sent with it
    kDuplicate,  ///< in a sum already: drop it
    kForward,    ///< send the packet on to the shard as it is
  };
  /// What was done beside, a count each: PARTIALs that are complete, that were asked for (FLUSH), and that made room.
  struct Done {
    Verdict verdict = Verdict::kForward;
    uint32_t completed = 0;
    uint32_t flushed = 0;
    uint32_t evicted = 0;
  };

  explicit RackSums(const Options& options);

  /// One unit of a worker of the rack, validated and decoded.
  /// rack  the rack's live workers: a sum of all of them is complete.
  Done take(const protocol::DatagramHeader& unit, const protocol::WindowEntries& entries, uint64_t rack,
            PartialSink& sink);

  /// Sends what is in (a worker left, say), or forgets it.
  uint32_t flush_all(PartialSink& sink);
  void clear();

 private:
  struct Cell {
    protocol::DatagramHeader key;  ///< of the unit that claimed it
    uint64_t have = 0;             ///< 0: free
    uint64_t last = 0;
    uint32_t next = protocol::kNoWindow;
    bool all_fin = true;
    uint32_t indices = 0;    ///< that are present
    uint64_t magnitude = 0;  ///< no sum is over it
    WindowSum sum;
    std::span<uint64_t> present;
  };

  bool fits(uint64_t indices, uint64_t magnitude) const;
  void add(Cell& cell, const protocol::DatagramHeader& unit, const protocol::WindowEntries& entries, uint32_t added,
           uint64_t magnitude);
  void send(Cell& cell, PartialSink& sink);

  Options options_;
  std::vector<int32_t> sums_;
  std::vector<uint64_t> bits_;
  std::vector<Cell> cells_;
  std::vector<uint16_t> indices_;
  std::vector<int32_t> values_;
  std::vector<uint8_t> payload_;
};

}  // namespace millrace::switch_agg
