#pragma once

#include <array>
#include <cstdint>

#include "protocol/datagram/header.h"

namespace millrace::server {

/// What came for one turn of one slot where a rack's switch adds up and the shard decides (role combine; SWITCH.md, section 7):
/// units (worker, fragment), one at a time as raw packets, or many in a sum that a rack sends (PARTIAL). Says what may
/// be added to
/// the turn's sum; the sum itself is the caller's.
///
/// Invariant   a unit is in at most once: what is accepted is disjoint from all that was. (Merging "unless a subset"
/// adds A twice where
///             {A} is in and {A, B} comes: tests/models of the protocol, C2.) What is refused is refused whole.
/// Whole       every live worker's fragments 0..last are in, or its rack's selected sum is. Resends reach the shard raw
/// past the
///             switch, and single units always fit: so a turn completes whatever a switch loses.
/// Threads     one at a time.
class DatagramUnits {
 public:
  /// Units of one fragment.
  struct Units {
    uint8_t fragment = 0;  ///< < kFragmentsMax
    uint64_t have = 0;     ///< workers whose unit it is; one bit: a raw packet
    uint64_t last = 0;     ///< those of them for whom it is the last fragment
  };

  enum class Verdict : uint8_t {
    kAccepted,
    kEmpty,        ///< nobody's
    kForeign,      ///< of a worker that is not live
    kOverlap,      ///< one of them at least is in
    kContradicts,  ///< `last` of what is not in `have`, against an earlier fragment's, or behind a last one
  };

  /// A turn begins: nothing is in.
  void begin(uint64_t live);

  /// Takes them all, or none. Accepted: the caller adds the whole payload.
  Verdict accept(const Units& units);

  /// A sum of all fragments of all live workers of a rack, which was cut there (RESELECTED): accepted iff none of their
  /// units is in.
  /// The first one that is accepted wins; another hash, or the same again, overlaps it.
  /// hash  of (kept set, values), not 0.
  Verdict accept_selected(uint64_t rack_workers, uint64_t hash);

  /// Whose contributions are in to their last fragment.
  uint64_t whole() const { return whole_; }
  bool is_complete() const { return live_ != 0 && whole_ == live_; }
  /// The hash of the selected sum that the worker's units are in; 0: they came unselected, or did not.
  uint64_t selected_hash(uint16_t worker) const { return (selected_ >> worker & 1) != 0 ? hashes_[worker] : 0; }

 private:
  static constexpr uint8_t kUnknown = 255;

  uint64_t live_ = 0;
  uint64_t whole_ = 0;
  uint64_t selected_ = 0;
  uint64_t begun_ = 0;
  std::array<uint64_t, protocol::kFragmentsMax> have_{};
  std::array<uint8_t, protocol::kSwitchWorkersMax> last_{};
  std::array<uint64_t, protocol::kSwitchWorkersMax> hashes_{};
};

}  // namespace millrace::server
