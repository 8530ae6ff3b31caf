#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/grid/grid.h"
#include "protocol/datagram/header.h"

/// What a worker that comes to a job under way needs beside weights (DESIGN.md, "Who comes to a running job").
namespace millrace::worker {

/// One packet of a turn or of its result, without its MAC.
struct SwitchFragment {
  protocol::DatagramHeader header;
  ByteBuffer extension;
  ByteBuffer payload;
};

/// S6.8: An epoch's opening that was without workers of the one before: up to which turn of each slot these may
/// have been counted, and in what. Who was removed and lives settles by it what it had out.
struct SwitchRemoval {
  struct Slot {
    uint64_t turn =
        0;  ///< T: the last that was closed; the removed worker's contribution to a later one counts nowhere
    std::vector<SwitchFragment> result;  ///< of T; empty: not known here
  };
  uint32_t epoch = 0;
  std::vector<std::pair<uint16_t, uint64_t>> gone;  ///< (worker, life)
  std::vector<Slot> slots;
};

/// What another worker needs to go on beside this one, taken between two steps.
struct SwitchHandover {
  using Fragment = SwitchFragment;
  struct Slot {
    uint64_t turn = 1;
    std::vector<SwitchFragment> last_result;
  };
  /// Each is a job of the protocol, with openings of its own.
  struct Lane {
    std::vector<Slot> slots;
    std::vector<SwitchRemoval> removals;  ///< the last few, the latest first
    /// Of the last epoch that was opened: by these a joiner sees who is gone at its first opening.
    uint64_t opened_live = 0;
    std::array<uint64_t, protocol::kSwitchWorkersMax> opened_lives{};
  };
  uint32_t next_step = 0;
  ExponentTable::State exponents;
  std::vector<Lane> lanes;
};

/// What a worker took for applied of its own, in a turn whose result nobody who is left has: it was computed again.
struct SwitchRevoked {
  int exponent = 0;
  IndexBuffer indices;       ///< in the tensor
  Buffer<int32_t> integers;  ///< some may be 0
};

/// Its own life of an epoch's workers, by number; 0: none is said.
using SwitchLives = std::array<uint64_t, protocol::kSwitchWorkersMax>;

/// Removals that a worker keeps: each has a result for each slot.
inline constexpr size_t kSwitchRemovalsMax = 8;

/// The bytes of a handover, a multiple of 8: "MLRHAND1", u64 of all bytes, fields, zeros (DESIGN.md has the grammar).
ByteBuffer encode_handover(const SwitchHandover& handover);

/// What a job's handovers have of each.
struct SwitchHandoverShape {
  size_t lanes = 1;
  size_t slots = 0;   ///< of all lanes, which have as many each
  size_t groups = 1;  ///< of windows (tensors)
};

/// Errors  malformed: not such bytes, or of another shape.
Result<SwitchHandover> decode_handover(ByteSpan bytes, const SwitchHandoverShape& shape);

}  // namespace millrace::worker
