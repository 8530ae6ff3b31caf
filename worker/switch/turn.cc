#include "worker/switch/turn.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "worker/switch/grid.h"

namespace millrace::worker {

using protocol::Datagram;
using protocol::DatagramHeader;

namespace {

namespace flag = protocol::datagram_flag;

/// Where decode_window() writes: large, and the same for all clients of a thread.
struct DecodeRoom {
  std::vector<uint16_t> indices = std::vector<uint16_t>(protocol::kFragmentEntriesMax);
  std::vector<int32_t> integers = std::vector<int32_t>(protocol::kFragmentEntriesMax);

  std::optional<uint32_t> decode(const DatagramHeader& header, ByteSpan payload, uint32_t window_indices) {
    const auto count = protocol::decode_window(header, payload, window_indices, {indices, integers});
    return count ? std::optional(*count) : std::nullopt;
  }
};

DecodeRoom& decode_room() {
  thread_local DecodeRoom room;
  return room;
}

/// On the grid, without the zeros.
struct Rounded {
  std::vector<uint16_t> indices;
  std::vector<int32_t> integers;
  uint32_t saturated = 0;
};

Rounded round_offer(const Offer& offer, int exponent, int32_t limit) {
  Rounded out;
  size_t largest = 0;
  for (size_t i = 0; i < offer.indices.size(); ++i) {
    if (std::fabs(offer.values[i]) > std::fabs(offer.values[largest])) largest = i;
    const int32_t integer = to_grid(offer.values[i], exponent, limit);
    if (integer == 0) continue;
    out.indices.push_back(offer.indices[i]);
    out.integers.push_back(integer);
    if (std::ldexp(std::fabs(static_cast<double>(offer.values[i])), -exponent) > limit) ++out.saturated;
  }
  if (out.indices.empty() && !offer.indices.empty() && offer.values[largest] != 0) {
    out.indices.push_back(offer.indices[largest]);
    out.integers.push_back(0);
  }
  return out;
}

}  // namespace

Contribution make_contribution(const Offer& offer, const ContributionTerms& terms) {
  Contribution out;
  Rounded rounded = round_offer(offer, terms.header.exponent, terms.limit);
  out.saturated = rounded.saturated;
  out.indices = std::move(rounded.indices);
  out.integers = std::move(rounded.integers);
  std::span<const uint16_t> indices(out.indices);
  std::span<int32_t> integers(out.integers);  // what receivers decode takes their place
  while (!indices.empty() && out.fragments.size() < protocol::kFragmentsMax) {
    Fragment fragment{.header = terms.header, .extension = {}, .payload = ByteBuffer(terms.payload_bytes_max)};
    fragment.header.fragment = static_cast<uint8_t>(out.fragments.size());
    const uint32_t taken = protocol::encode_window({indices, integers}, terms.codecs, terms.window_indices,
                                                   fragment.header, fragment.payload, integers);
    MILLRACE_CHECK(taken > 0 && taken <= indices.size(), taken);
    fragment.payload.resize(fragment.header.payload_bytes);
    out.fragments.push_back(std::move(fragment));
    indices = indices.subspan(taken);
    integers = integers.subspan(taken);
  }
  out.left_over = static_cast<uint32_t>(indices.size());
  out.indices.resize(out.indices.size() - out.left_over);
  out.integers.resize(out.indices.size());
  if (out.fragments.empty()) {
    out.fragments.push_back({.header = terms.header, .extension = {}, .payload = {}});
    out.fragments.back().header.flags |= flag::kEmpty;
  }
  out.fragments.back().header.flags |= flag::kLast;
  return out;
}

void Gathering::clear() {
  for (std::optional<Part>& part : parts_) part.reset();
  count_ = 0;
  last_.reset();
  whole_ = false;
  indices_.clear();
  integers_.clear();
  racks_.clear();
}

bool Gathering::contradicts(const Datagram& datagram) const {
  const DatagramHeader& header = datagram.header;
  const bool is_last = (header.flags & flag::kLast) != 0;
  if (last_ && (header.fragment > *last_ || is_last)) return true;
  if (count_ == 0) return false;
  if (is_last) {
    for (size_t later = header.fragment + size_t{1}; later < parts_.size(); ++later) {
      if (parts_[later]) return true;
    }
  }
  constexpr uint8_t kOfAll = flag::kFin | flag::kVoid | flag::kReselected;
  if (header.next != first_.next || (header.flags & kOfAll) != (first_.flags & kOfAll)) return true;
  for (const std::optional<Part>& part : parts_) {
    if (!part) continue;
    // Behind the terms is what is said of the fragment's own entries.
    return !std::ranges::equal(ByteSpan(part->packet.extension).first(protocol::kResultTermsBytes),
                               datagram.extension.first(protocol::kResultTermsBytes));
  }
  return false;
}

Gathering::Taken Gathering::take(const Datagram& datagram, uint32_t window_indices) {
  const DatagramHeader& header = datagram.header;
  if (whole_ || parts_[header.fragment]) return Taken::kDuplicate;
  if (!protocol::read_result_terms(datagram.extension)) return Taken::kBadPayload;
  if (contradicts(datagram)) return Taken::kContradiction;
  DecodeRoom& room = decode_room();
  const auto count = room.decode(header, datagram.payload, window_indices);
  if (!count || !protocol::KeptMarks::read(datagram.extension, *count)) return Taken::kBadPayload;
  if (count_ == 0) first_ = header;
  parts_[header.fragment] = Part{
      .packet = {.header = header,
                 .extension = ByteBuffer(datagram.extension.begin(), datagram.extension.end()),
                 .payload = ByteBuffer(datagram.payload.begin(), datagram.payload.end())},
      .indices = std::vector<uint16_t>(room.indices.begin(), room.indices.begin() + *count),
      .integers = std::vector<int32_t>(room.integers.begin(), room.integers.begin() + *count),
  };
  ++count_;
  if ((header.flags & flag::kLast) != 0) last_ = header.fragment;
  if (!last_ || count_ != *last_ + 1u) return Taken::kMore;
  return join();
}

/// Fragments are in order of their indices, but where something was left out: then they begin anywhere and go round
/// the window's end.
Gathering::Taken Gathering::join() {
  std::vector<const Part*> order;
  for (size_t i = 0; i <= *last_; ++i) order.push_back(&*parts_[i]);
  const auto first_index = [](const Part* part) { return part->indices.empty() ? -1 : int{part->indices.front()}; };
  std::ranges::stable_sort(order, {}, first_index);
  for (const Part* part : order) {
    const bool follows = indices_.empty() || part->indices.empty() || part->indices.front() > indices_.back();
    if (!follows || !join_racks(*part)) {
      clear();  // the fragments do not belong together
      return Taken::kContradiction;
    }
    indices_.insert(indices_.end(), part->indices.begin(), part->indices.end());
    integers_.insert(integers_.end(), part->integers.begin(), part->integers.end());
  }
  whole_ = true;
  return Taken::kWhole;
}

/// False: this fragment is of other racks than those before it.
bool Gathering::join_racks(const Part& part) {
  const auto marks = *protocol::KeptMarks::read(part.packet.extension, static_cast<uint32_t>(part.indices.size()));
  const bool is_first = indices_.empty() && racks_.empty();
  if (is_first) racks_.resize(marks.racks());
  if (racks_.size() != marks.racks()) return false;
  for (size_t rack = 0; rack < racks_.size(); ++rack) {
    if (is_first) racks_[rack].workers = marks.workers(rack);
    if (racks_[rack].workers != marks.workers(rack)) return false;
    for (uint32_t i = 0; i < part.indices.size(); ++i) racks_[rack].kept.push_back(marks.is_kept(rack, i) ? 1 : 0);
  }
  return true;
}

std::vector<Fragment> Gathering::packets() const {
  std::vector<Fragment> out;
  for (size_t i = 0; i < count_; ++i) out.push_back(parts_[i]->packet);
  return out;
}

Settlement settle(const Offer& offer, const Contribution& sent, const std::vector<uint16_t>* update,
                  const std::vector<uint16_t>* kept, uint32_t window_begin) {
  Settlement out;
  const int8_t exponent = sent.fragments.front().header.exponent;
  const auto holds = [](const std::vector<uint16_t>& set, uint16_t index) {
    return std::ranges::binary_search(set, index);
  };
  const auto note = [&](uint16_t index, float value, int32_t integer) {
    const bool applied = update != nullptr && holds(*update, index) && (kept == nullptr || holds(*kept, index));
    const float back = applied ? grid_remainder(value, integer, exponent) : value;
    if (applied && integer != 0) {
      out.applied_indices.push_back(window_begin + index);
      out.applied_integers.push_back(integer);
    }
    if (back == 0) return;
    out.indices.push_back(window_begin + index);
    out.values.push_back(back);
  };
  size_t own = 0;
  size_t at = 0;
  while (own < offer.indices.size() || at < sent.indices.size()) {
    const bool has_own =
        own < offer.indices.size() && (at == sent.indices.size() || offer.indices[own] <= sent.indices[at]);
    const bool has_sent =
        at < sent.indices.size() && (own == offer.indices.size() || sent.indices[at] <= offer.indices[own]);
    const uint16_t index = has_own ? offer.indices[own] : sent.indices[at];
    note(index, has_own ? offer.values[own] : 0.0F, has_sent ? sent.integers[at] : 0);
    own += has_own ? 1 : 0;
    at += has_sent ? 1 : 0;
  }
  return out;
}

}  // namespace millrace::worker
