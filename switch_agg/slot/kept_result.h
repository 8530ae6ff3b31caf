#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/window/window_code.h"

namespace millrace::switch_agg {

/// Describes a rack that truncated its sum: the workers concerned, and the indices of the window that it retained.
struct RackEntries {
  uint64_t workers = 0;
  std::span<const uint64_t> indices;  ///< [window_indices / 64] a bit each
};

/// The shortest fragments that results are encoded into.
inline constexpr size_t kFragmentBytesMin = 1200;

/// Holds the encoded result of one turn. It is sent to all workers when the turn closes, and to one worker that missed
/// it. Fragments lie as datagrams, header and extension first, without sequence and MAC: each transmission gets its
/// own.
///
/// Memory   kFragmentsMax * fragment_bytes_max, handed over once. REQUIRES: fragment_bytes_max >= kFragmentBytesMin.
class KeptResult {
 public:
  KeptResult() = default;
  KeptResult(std::span<uint8_t> memory, size_t fragment_bytes_max)
      : memory_(memory), fragment_bytes_max_(fragment_bytes_max) {}

  /// Begins a result of that turn, without fragments.
  void begin(uint64_t turn);
  uint64_t turn() const { return turn_; }
  /// Returns the number of fragments; 0: there is no result, or it is incomplete.
  uint32_t fragments() const { return whole_ ? count_ : 0; }

  protocol::DatagramHeader header(uint32_t fragment) const;
  /// Returns the fragment's datagram, in which sealing writes header and MAC.
  std::span<uint8_t> packet(uint32_t fragment) {
    return memory_.subspan(fragment * fragment_bytes_max_, fragment_bytes_max_);
  }
  /// Returns extension and payload alone.
  std::span<const uint8_t> body(uint32_t fragment) const;

  struct Sums {
    std::span<const uint16_t> indices;
    std::span<const int32_t> values;
    std::span<int32_t> decoded;  ///< [indices] scratch
    std::span<const RackEntries> racks = {};
  };

  /// Encodes a closed turn into at most 16 fragments, and omits the entries that do not fit. Omission begins at an
  /// index that changes with the step, so that the omitted indices vary. Returns the number of omitted entries.
  ///
  /// header  of a RESULT: all fields that its fragments share.
  /// REQUIRES: at most kSwitchWorkersMax racks.
  /// Order   a fragment's indices increase; those of fragment f + 1 follow f's, round the window's end where entries
  ///         were omitted.
  uint32_t encode(const protocol::DatagramHeader& header, const protocol::ResultTerms& terms,
                  const protocol::WindowCodecs& codecs, uint32_t window_indices, const Sums& sums);

  enum class Kept : uint8_t { kRefused, kTaken, kWhole };
  /// Takes one fragment of a result that a worker uploads (KEPT), as if it had been decided here.
  ///
  /// header  of the RESULT that it becomes: incarnation and epoch are this aggregator's.
  /// Refused  does not agree with the fragments before it, or is too long.
  Kept keep(const protocol::DatagramHeader& header, ByteSpan extension, ByteSpan payload);

 private:
  uint32_t encode_from(size_t first, const protocol::DatagramHeader& header, const protocol::ResultTerms& terms,
                       const protocol::WindowCodecs& codecs, uint32_t window_indices, const Sums& sums);

  std::span<uint8_t> memory_;
  size_t fragment_bytes_max_ = 0;
  uint64_t turn_ = 0;
  uint32_t have_ = 0;   ///< fragments, a bit each
  uint32_t count_ = 0;  ///< known with the last one
  bool whole_ = false;
};

}  // namespace millrace::switch_agg
