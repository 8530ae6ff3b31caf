#include "worker/switch/turn.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/grid/grid_kernels.h"
#include "worker/switch/integer_limit.h"

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

/// What drop_entries() left: of one result at a time of all slots.
struct JoinRoom {
  std::vector<uint16_t> indices;
  std::vector<int32_t> integers;
};

JoinRoom& join_room() {
  thread_local JoinRoom room;
  return room;
}

/// Holds the entries of an offer that are sent, where some are skipped. One turn's at a time.
struct SentRoom {
  std::vector<uint16_t> indices;
  std::vector<int32_t> integers;
  std::vector<uint32_t> skipped;  ///< ascending: which of the offered entries
};

SentRoom& sent_room() {
  thread_local SentRoom room;
  return room;
}

/// The offered entries that are sent, run by run: take(first, entries).
template <typename Take>
void each_sent_run(size_t offered, std::span<const uint32_t> skipped, const Take& take) {
  size_t first = 0;
  for (const uint32_t position : skipped) {
    if (position > first) take(first, position - first);
    first = position + size_t{1};
  }
  if (offered > first) take(first, offered - first);
}

/// Which entries round to 0. Where all do, the largest is sent as that.
void find_skipped(const Offer& offer, std::span<const int32_t> sent, std::vector<uint32_t>& skipped) {
  const auto zeros = static_cast<size_t>(std::ranges::count(sent, 0));
  skipped.resize(zeros);
  if (zeros == 0) return;
  skipped.resize(zeros + 1);  // one that is written and does not count, behind the last zero
  size_t found = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    skipped[found] = static_cast<uint32_t>(i);
    found += sent[i] == 0 ? 1 : 0;
  }
  skipped.resize(zeros);
  if (zeros < sent.size()) return;
  const auto smaller = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
  const auto largest = std::ranges::max_element(offer.values, smaller);
  if (*largest != 0) skipped.erase(skipped.begin() + (largest - offer.values.begin()));
}

/// The entries that are sent, beside each other. Where none is skipped these are the offer itself.
struct SentEntries {
  std::span<const uint16_t> indices;
  std::span<int32_t> integers;
};

SentEntries leave_out_skipped(const Offer& offer, std::span<int32_t> sent, SentRoom& room) {
  if (room.skipped.empty()) return {offer.indices, sent};
  const size_t count = sent.size() - room.skipped.size();
  room.indices.resize(count);
  room.integers.resize(count);
  size_t at = 0;
  each_sent_run(sent.size(), room.skipped, [&](size_t first, size_t entries) {
    std::copy_n(offer.indices.data() + first, entries, room.indices.data() + at);
    std::copy_n(sent.data() + first, entries, room.integers.data() + at);
    at += entries;
  });
  return {room.indices, room.integers};
}

/// What leave_out_skipped() took, as receivers decode it by now.
void put_back(const SentRoom& room, std::span<int32_t> sent) {
  if (room.skipped.empty()) return;
  size_t at = 0;
  each_sent_run(sent.size(), room.skipped, [&](size_t first, size_t entries) {
    std::copy_n(room.integers.data() + at, entries, sent.data() + first);
    at += entries;
  });
}

/// The fragment number `at`, in memory of the turn before.
Fragment& fragment_of(Contribution& out, size_t at, const DatagramHeader& header) {
  if (at == out.fragments.size()) out.fragments.emplace_back();
  Fragment& fragment = out.fragments[at];
  fragment.header = header;
  fragment.header.fragment = static_cast<uint8_t>(at);
  return fragment;
}

}  // namespace

void make_contribution(const Offer& offer, const ContributionTerms& terms, std::span<int32_t> sent, Contribution& out) {
  MILLRACE_CHECK(offer.values.size() == offer.indices.size() && sent.size() == offer.indices.size(),
                 offer.indices.size(), offer.values.size(), sent.size());
  SentRoom& room = sent_room();
  out.saturated = to_grid(offer.values, terms.header.exponent, terms.limit, sent);
  find_skipped(offer, sent, room.skipped);
  out.skipped = static_cast<uint32_t>(room.skipped.size());
  auto [indices, integers] = leave_out_skipped(offer, sent, room);  // what receivers decode takes the integers' place
  size_t count = 0;
  const size_t share = protocol::even_share(indices, terms.codecs, terms.payload_bytes_max);
  while (!indices.empty() && count < protocol::kFragmentsMax) {
    Fragment& fragment = fragment_of(out, count++, terms.header);
    fragment.payload.resize(terms.payload_bytes_max);
    const size_t offered = std::min(indices.size(), share);
    const uint32_t taken = protocol::encode_window({indices.first(offered), integers.first(offered)}, terms.codecs,
                                                   terms.window_indices, fragment.header, fragment.payload, integers);
    MILLRACE_CHECK(taken > 0 && taken <= indices.size(), taken);
    fragment.payload.resize(fragment.header.payload_bytes);
    indices = indices.subspan(taken);
    integers = integers.subspan(taken);
  }
  out.left_over = static_cast<uint32_t>(indices.size());
  std::ranges::fill(integers, 0);
  put_back(room, sent);
  if (count == 0) {
    Fragment& fragment = fragment_of(out, count++, terms.header);
    fragment.payload.clear();
    fragment.header.flags |= flag::kEmpty;
  }
  out.fragments.resize(count);
  out.fragments.back().header.flags |= flag::kLast;
}

void Gathering::clear() {
  for (Part& part : parts()) part.is_here = false;
  reach_ = 0;
  count_ = 0;
  last_.reset();
  whole_ = false;
  indices_.clear();
  integers_.clear();
  racks_.clear();
}

void Gathering::take_room() {
  if (indices_.capacity() > 0) return;
  indices_.swap(join_room().indices);
  integers_.swap(join_room().integers);
}

void Gathering::drop_entries() {
  indices_.clear();
  integers_.clear();
  JoinRoom& room = join_room();
  if (indices_.capacity() <= room.indices.capacity()) return;
  indices_.swap(room.indices);
  integers_.swap(room.integers);
}

bool Gathering::contradicts(const Datagram& datagram) const {
  const DatagramHeader& header = datagram.header;
  const bool is_last = (header.flags & flag::kLast) != 0;
  if (last_ && (header.fragment > *last_ || is_last)) return true;
  if (count_ == 0) return false;
  // The retained parts end with one that has arrived.
  if (is_last && reach_ > header.fragment + size_t{1}) return true;
  constexpr uint8_t kOfAll = flag::kFin | flag::kVoid | flag::kReselected;
  if (header.next != first_.next || (header.flags & kOfAll) != (first_.flags & kOfAll)) return true;
  for (const Part& part : parts()) {
    if (!part.is_here) continue;
    // Behind the terms are the fields of the fragment's own entries.
    return !std::ranges::equal(ByteSpan(part.packet.extension).first(protocol::kResultTermsBytes),
                               datagram.extension.first(protocol::kResultTermsBytes));
  }
  return false;
}

Gathering::Taken Gathering::take(const Datagram& datagram, uint32_t window_indices) {
  const DatagramHeader& header = datagram.header;
  if (whole_ || (header.fragment < reach_ && parts_[header.fragment].is_here)) return Taken::kDuplicate;
  if (!protocol::read_result_terms(datagram.extension)) return Taken::kBadPayload;
  if (contradicts(datagram)) return Taken::kContradiction;
  DecodeRoom& room = decode_room();
  const auto count = room.decode(header, datagram.payload, window_indices);
  if (!count || !protocol::RetainedMarks::read(datagram.extension, *count)) return Taken::kBadPayload;
  if (count_ == 0) first_ = header;
  reach_ = std::max(reach_, header.fragment + size_t{1});
  if (reach_ > parts_.size()) parts_.resize(reach_);
  Part& part = parts_[header.fragment];
  part.is_here = true;
  part.packet.header = header;
  part.packet.extension.assign(datagram.extension.begin(), datagram.extension.end());
  part.packet.payload.assign(datagram.payload.begin(), datagram.payload.end());
  ++count_;
  if ((header.flags & flag::kLast) != 0) last_ = header.fragment;
  const Run latest{&part, std::span(room.indices).first(*count), std::span(room.integers).first(*count)};
  if (last_ && count_ == *last_ + 1u) return join(latest);
  part.indices.assign(latest.indices.begin(), latest.indices.end());
  part.integers.assign(latest.integers.begin(), latest.integers.end());
  return Taken::kMore;
}

/// Fragments are in order of their indices, but where something was left out: then they begin anywhere and go round
/// the window's end.
///
/// latest  the one that came last, as it was decoded: it was not kept.
Gathering::Taken Gathering::join(const Run& latest) {
  take_room();
  std::array<Run, protocol::kFragmentsMax> room;
  const auto order = std::span(room).first(reach_);
  std::ranges::transform(parts(), order.begin(), [&latest](const Part& part) {
    return &part == latest.part ? latest : Run{&part, part.indices, part.integers};
  });
  const auto first_index = [](const Run& run) { return run.indices.empty() ? -1 : int{run.indices.front()}; };
  if (!std::ranges::is_sorted(order, {}, first_index)) std::ranges::stable_sort(order, {}, first_index);
  for (const Run& run : order) {
    const bool follows = indices_.empty() || run.indices.empty() || run.indices.front() > indices_.back();
    if (!follows || !join_racks(*run.part, run.indices.size())) {
      clear();  // the fragments do not belong together
      return Taken::kContradiction;
    }
    indices_.insert(indices_.end(), run.indices.begin(), run.indices.end());
    integers_.insert(integers_.end(), run.integers.begin(), run.integers.end());
  }
  whole_ = true;
  return Taken::kWhole;
}

/// False: this fragment is of other racks than those before it.
bool Gathering::join_racks(const Part& part, size_t entries) {
  if (part.packet.extension.size() == protocol::kResultTermsBytes) return racks_.empty();
  const auto marks = *protocol::RetainedMarks::read(part.packet.extension, static_cast<uint32_t>(entries));
  const bool is_first = indices_.empty() && racks_.empty();
  if (is_first) racks_.resize(marks.racks());
  if (racks_.size() != marks.racks()) return false;
  for (size_t rack = 0; rack < racks_.size(); ++rack) {
    if (is_first) racks_[rack].workers = marks.workers(rack);
    if (racks_[rack].workers != marks.workers(rack)) return false;
    for (uint32_t i = 0; i < entries; ++i) racks_[rack].kept.push_back(marks.is_retained(rack, i) ? 1 : 0);
  }
  return true;
}

void Gathering::take_packets(std::vector<Fragment>& out) {
  out.resize(count_);
  for (size_t i = 0; i < count_; ++i) std::swap(out[i], parts_[i].packet);
}

}  // namespace millrace::worker
