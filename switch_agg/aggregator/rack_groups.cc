#include "switch_agg/aggregator/rack_groups.h"

#include <algorithm>
#include <array>

namespace millrace::switch_agg {

using protocol::kPartialTermsBytes;

RackGroups::RackGroups(const Shape& shape)
    : shape_(shape),
      memory_(size_t{shape.slots} * shape.racks * protocol::kFragmentsMax * shape.packet_bytes_max),
      entries_(size_t{shape.slots} * shape.racks * (shape.window_indices / 64)),
      places_(size_t{shape.slots} * shape.racks) {
  reduced_.reserve(shape.racks);
  const size_t bytes = protocol::kFragmentsMax * size_t{shape.packet_bytes_max};
  for (size_t at = 0; at < places_.size(); ++at) {
    places_[at].parts = KeptResult(std::span(memory_).subspan(at * bytes, bytes), shape.packet_bytes_max);
  }
}

KeptResult::Kept RackGroups::take(uint32_t slot, uint32_t rack, const protocol::DatagramHeader& header,
                                  const protocol::PartialTerms& terms, ByteSpan payload) {
  Place& at = place(slot, rack);
  if (at.parts.turn() != header.turn || at.hash != terms.hash) {
    at.parts.begin(header.turn);
    at.hash = terms.hash;
  }
  // The set of asking workers differs from one transmission to the next; all else is equal in all parts.
  std::array<uint8_t, kPartialTermsBytes> extension;
  protocol::put_partial_terms({.have = terms.have, .last = 0, .hash = terms.hash}, extension);
  return at.parts.keep(header, extension, payload);
}

ByteSpan RackGroups::payload(uint32_t slot, uint32_t rack, uint32_t part) const {
  return parts(slot, rack).body(part).subspan(kPartialTermsBytes);
}

void RackGroups::begin_turn(uint32_t slot) {
  for (uint32_t rack = 0; rack < shape_.racks; ++rack) place(slot, rack).threshold_of = 0;
}

void RackGroups::mark_reduced(uint32_t slot, uint32_t rack, uint64_t workers) {
  place(slot, rack).threshold_of = workers;
  std::ranges::fill(entries_of(slot, rack), 0);
}

void RackGroups::mark_entries(uint32_t slot, uint32_t rack, std::span<const uint16_t> indices) {
  const std::span<uint64_t> bits = entries_of(slot, rack);
  for (const uint16_t index : indices) bits[index / 64] |= uint64_t{1} << (index % 64);
}

std::span<const RackEntries> RackGroups::reduced_racks(uint32_t slot) {
  reduced_.clear();
  for (uint32_t rack = 0; rack < shape_.racks; ++rack) {
    const uint64_t workers = place(slot, rack).threshold_of;
    if (workers != 0) reduced_.push_back({.workers = workers, .indices = entries_of(slot, rack)});
  }
  return reduced_;
}

void RackGroups::clear() {
  for (Place& at : places_) {
    at.parts.begin(0);
    at.threshold_of = 0;
  }
}

std::span<uint64_t> RackGroups::entries_of(uint32_t slot, uint32_t rack) {
  const size_t words = shape_.window_indices / 64;
  return std::span(entries_).subspan((size_t{slot} * shape_.racks + rack) * words, words);
}

}  // namespace millrace::switch_agg
