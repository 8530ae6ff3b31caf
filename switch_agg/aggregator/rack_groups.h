#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "switch_agg/slot/kept_result.h"

namespace millrace::switch_agg {

/// Collects the groups that racks send to a decider, part by part, and the indices that racks retained of truncated
/// groups (S7.2, S7.5).
///
/// Invariant  parts of different hashes are never together: a slot and rack have one group at most. A part of a newer
///            turn or of another hash discards it.
/// Memory     fixed: slots x racks x (kFragmentsMax x packet_bytes_max + window_indices / 8 bytes).
/// Threads    one at a time.
class RackGroups {
 public:
  struct Shape {
    uint32_t slots = 0;
    uint32_t racks = 0;
    uint32_t window_indices = 0;
    uint32_t packet_bytes_max = 0;
  };
  explicit RackGroups(const Shape& shape);

  /// Takes a part that decodes. kWhole: all parts of its group have arrived.
  KeptResult::Kept take(uint32_t slot, uint32_t rack, const protocol::DatagramHeader& header,
                        const protocol::PartialTerms& terms, ByteSpan payload);
  const KeptResult& parts(uint32_t slot, uint32_t rack) const { return place(slot, rack).parts; }
  /// Returns the payload of a part.
  ByteSpan payload(uint32_t slot, uint32_t rack, uint32_t part) const;
  void forget(uint32_t slot, uint32_t rack) { place(slot, rack).parts.begin(0); }

  /// Begins a turn in the slot: no rack has truncated its sum.
  void begin_turn(uint32_t slot);
  /// Notes that the rack truncated its sum. mark_entries() follows with the retained indices.
  void mark_reduced(uint32_t slot, uint32_t rack, uint64_t workers);
  void mark_entries(uint32_t slot, uint32_t rack, std::span<const uint16_t> indices);
  /// Returns the racks that truncated their sums in the slot's turn. Valid until the next call.
  std::span<const RackEntries> reduced_racks(uint32_t slot);

  void clear();

 private:
  struct Place {
    KeptResult parts;
    uint64_t hash = 0;
    uint64_t threshold_of = 0;  ///< the rack's workers, where it truncated its sum
  };
  const Place& place(uint32_t slot, uint32_t rack) const { return places_[size_t{slot} * shape_.racks + rack]; }
  Place& place(uint32_t slot, uint32_t rack) { return places_[size_t{slot} * shape_.racks + rack]; }
  std::span<uint64_t> entries_of(uint32_t slot, uint32_t rack);

  Shape shape_;
  std::vector<uint8_t> memory_;
  std::vector<uint64_t> entries_;
  std::vector<Place> places_;
  std::vector<RackEntries> reduced_;
};

}  // namespace millrace::switch_agg
