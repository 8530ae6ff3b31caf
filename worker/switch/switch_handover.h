#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/grid/grid.h"
#include "protocol/datagram/header.h"

/// The state that a joiner of a running job needs beside weights (DESIGN.md, section on joiners).
namespace millrace::worker {

/// Holds one packet of a turn or of its result, without its MAC.
struct SwitchFragment {
  protocol::DatagramHeader header;
  ByteBuffer extension;
  ByteBuffer payload;
};

/// Describes an epoch's opening that removed workers of the epoch before (S6.8). For each slot it has the last turn
/// that may have counted them, with its result. A removed worker that is alive resolves its contributions in flight by
/// it.
struct SwitchRemoval {
  struct Slot {
    /// T: the last turn that was closed. Later turns do not count the removed worker's contributions.
    uint64_t turn = 0;
    std::vector<SwitchFragment> result;  ///< of T; empty: not known here
  };
  uint32_t epoch = 0;
  std::vector<std::pair<uint16_t, uint64_t>> gone;  ///< (worker, incarnation)
  std::vector<Slot> slots;
};

/// Holds the state from which another worker continues beside this one, taken between two steps.
struct SwitchHandover {
  using Fragment = SwitchFragment;
  struct Slot {
    uint64_t turn = 1;
    std::vector<SwitchFragment> last_result;
  };
  /// Holds the state of a lane, which is a job of the protocol, with openings of its own.
  struct Lane {
    std::vector<Slot> slots;
    std::vector<SwitchRemoval> removals;  ///< the last few, the latest first.
    /// Live set and incarnations of the last opened epoch. By these a joiner sees at its first opening which workers
    /// were removed.
    uint64_t opened_live = 0;
    std::array<uint64_t, protocol::kSwitchWorkersMax> opened_incarnations{};
  };
  uint32_t next_step = 0;
  ExponentTable::State exponents;
  std::vector<Lane> lanes;
};

/// Holds values that a worker counted as applied, in a turn whose result no remaining worker has. The turn was computed
/// again.
struct SwitchRevoked {
  int exponent = 0;
  IndexBuffer indices;       ///< in the tensor
  Buffer<int32_t> integers;  ///< some may be 0
};

/// Incarnation of each of an epoch's workers, by number; 0: unknown.
using AggregatorIncarnations = std::array<uint64_t, protocol::kSwitchWorkersMax>;

/// Removals that a worker keeps: each has a result for each slot.
inline constexpr size_t kSwitchRemovalsMax = 8;

/// Returns the bytes of a handover, a multiple of 8: "MLRHAND1", u64 of all bytes, fields, zeros (DESIGN.md has the
/// grammar).
ByteBuffer encode_handover(const SwitchHandover& handover);

/// Says the dimensions of the handovers of one job.
struct SwitchHandoverShape {
  size_t lanes = 1;
  size_t slots = 0;   ///< of all lanes, which have as many each
  size_t groups = 1;  ///< of windows (tensors)
  /// Of the job's longest datagram: a FETCH makes the joiner send a fragment on.
  size_t packet_bytes_max = protocol::kDatagramBytesMax;
};

/// Errors  malformed: not such bytes, or of another shape.
Result<SwitchHandover> decode_handover(ByteSpan bytes, const SwitchHandoverShape& shape);

}  // namespace millrace::worker
