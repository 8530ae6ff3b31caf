#include "worker/switch/turn.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/grid/fate_kernels.h"
#include "kernels/grid/grid_kernels.h"
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

/// On the grid, without the zeros: out's indices and integers.
void round_offer(const Offer& offer, int exponent, int32_t limit, Contribution& out) {
  const size_t count = offer.indices.size();
  out.indices.resize(count);
  out.integers.resize(count);
  out.saturated = 0;
  if (count == 0) return;
  out.saturated = to_grid(offer.values, exponent, limit, out.integers);
  if (std::ranges::find(out.integers, 0) == out.integers.end()) {
    out.indices = offer.indices;
    return;
  }
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    out.indices[kept] = offer.indices[i];
    out.integers[kept] = out.integers[i];
    kept += out.integers[i] != 0 ? 1 : 0;
  }
  if (kept == 0) {
    const auto smaller = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    const auto largest = std::ranges::max_element(offer.values, smaller);
    if (*largest != 0) {
      out.indices[0] = offer.indices[static_cast<size_t>(largest - offer.values.begin())];
      out.integers[0] = 0;
      kept = 1;
    }
  }
  out.indices.resize(kept);
  out.integers.resize(kept);
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

void make_contribution(const Offer& offer, const ContributionTerms& terms, Contribution& out) {
  round_offer(offer, terms.header.exponent, terms.limit, out);
  std::span<const uint16_t> indices(out.indices);
  std::span<int32_t> integers(out.integers);  // what receivers decode takes their place
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
  out.indices.resize(out.indices.size() - out.left_over);
  out.integers.resize(out.indices.size());
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

bool Gathering::contradicts(const Datagram& datagram) const {
  const DatagramHeader& header = datagram.header;
  const bool is_last = (header.flags & flag::kLast) != 0;
  if (last_ && (header.fragment > *last_ || is_last)) return true;
  if (count_ == 0) return false;
  // Whatever is kept of parts ends with one that has come.
  if (is_last && reach_ > header.fragment + size_t{1}) return true;
  constexpr uint8_t kOfAll = flag::kFin | flag::kVoid | flag::kReselected;
  if (header.next != first_.next || (header.flags & kOfAll) != (first_.flags & kOfAll)) return true;
  for (const Part& part : parts()) {
    if (!part.is_here) continue;
    // Behind the terms is what is said of the fragment's own entries.
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
  if (!count || !protocol::KeptMarks::read(datagram.extension, *count)) return Taken::kBadPayload;
  if (count_ == 0) first_ = header;
  reach_ = std::max(reach_, header.fragment + size_t{1});
  if (reach_ > parts_.size()) parts_.resize(reach_);
  const auto decoded_indices = std::span(room.indices).first(*count);
  const auto decoded_integers = std::span(room.integers).first(*count);
  const bool is_all = header.fragment == 0 && (header.flags & flag::kLast) != 0;
  Part& part = parts_[header.fragment];
  part.is_here = true;
  part.packet.header = header;
  part.packet.extension.assign(datagram.extension.begin(), datagram.extension.end());
  part.packet.payload.assign(datagram.payload.begin(), datagram.payload.end());
  part.indices.clear();
  part.integers.clear();
  ++count_;
  if ((header.flags & flag::kLast) != 0) last_ = header.fragment;
  if (is_all) {
    join_racks(part, *count);
    indices_.assign(decoded_indices.begin(), decoded_indices.end());
    integers_.assign(decoded_integers.begin(), decoded_integers.end());
    whole_ = true;
    return Taken::kWhole;
  }
  part.indices.assign(decoded_indices.begin(), decoded_indices.end());
  part.integers.assign(decoded_integers.begin(), decoded_integers.end());
  if (!last_ || count_ != *last_ + 1u) return Taken::kMore;
  return join();
}

/// Fragments are in order of their indices, but where something was left out: then they begin anywhere and go round
/// the window's end.
Gathering::Taken Gathering::join() {
  std::vector<const Part*> order;
  for (const Part& part : parts()) order.push_back(&part);
  const auto first_index = [](const Part* part) { return part->indices.empty() ? -1 : int{part->indices.front()}; };
  std::ranges::stable_sort(order, {}, first_index);
  for (const Part* part : order) {
    const bool follows = indices_.empty() || part->indices.empty() || part->indices.front() > indices_.back();
    if (!follows || !join_racks(*part, part->indices.size())) {
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
bool Gathering::join_racks(const Part& part, size_t entries) {
  const auto marks = *protocol::KeptMarks::read(part.packet.extension, static_cast<uint32_t>(entries));
  const bool is_first = indices_.empty() && racks_.empty();
  if (is_first) racks_.resize(marks.racks());
  if (racks_.size() != marks.racks()) return false;
  for (size_t rack = 0; rack < racks_.size(); ++rack) {
    if (is_first) racks_[rack].workers = marks.workers(rack);
    if (racks_[rack].workers != marks.workers(rack)) return false;
    for (uint32_t i = 0; i < entries; ++i) racks_[rack].kept.push_back(marks.is_kept(rack, i) ? 1 : 0);
  }
  return true;
}

void Gathering::take_packets(std::vector<Fragment>& out) {
  out.resize(count_);
  for (size_t i = 0; i < count_; ++i) std::swap(out[i], parts_[i].packet);
}

namespace {

/// A window's indices as bits: who asks for each of many asks in no time.
class IndexSet {
 public:
  IndexSet() : words_(protocol::kWindowIndicesMax / 32) {}
  /// Ascending indices, into an empty set. A word is put together beside its memory: neighbours would wait for stores.
  void fill(std::span<const uint16_t> indices) {
    uint32_t* const words = words_.data();
    uint32_t word = 0;
    uint32_t at = 0;
    for (const uint16_t index : indices) {
      word = index / 32u == at ? word : 0;
      at = index / 32u;
      word |= uint32_t{1} << (index % 32);
      words[at] = word;
    }
  }
  /// Of what fill() had: all of the words between the first and the last, which is the faster way.
  void erase(std::span<const uint16_t> indices) {
    if (indices.empty()) return;
    std::fill(words_.begin() + indices.front() / 32, words_.begin() + indices.back() / 32 + 1, 0);
  }
  bool holds(uint16_t index) const { return (words_[index / 32] >> (index % 32) & 1) != 0; }
  std::span<const uint32_t> words() const { return words_; }

 private:
  std::vector<uint32_t> words_;
};

/// What both say: of the update, and of what the rack kept. Empty between calls.
struct Applied {
  IndexSet update;
  IndexSet kept;
};

Applied& applied_room() {
  thread_local Applied room;
  return room;
}

std::vector<int32_t>& taken_room() {
  thread_local std::vector<int32_t> room;
  return room;
}

/// As grid_remainder().
float remainder(float value, int32_t taken, double step) {
  return static_cast<float>(static_cast<double>(value) - static_cast<double>(taken) * step);
}

/// Of each entry what was applied.
///
/// kept  null: the rack kept all of it.
void take_applied(std::span<const uint16_t> indices, std::span<const int32_t> integers, const IndexSet& update,
                  const IndexSet* kept, std::span<int32_t> taken) {
  take_where_set(indices, integers, update.words(), taken);
  if (kept != nullptr) take_where_set(indices, taken, kept->words(), taken);
}

/// What was sent is some of what was offered: the rest rounds to nothing, or was left over. False: it is not, and nothing
/// is told.
bool take_of_part(const Offer& offer, const Contribution& sent, const IndexSet& update, const IndexSet* kept,
                  std::span<int32_t> taken) {
  const size_t count = sent.indices.size();
  std::vector<int32_t>& of_sent = taken_room();
  of_sent.resize(count + 1);
  take_applied(sent.indices, sent.integers, update, kept, std::span(of_sent).first(count));
  of_sent[count] = 0;  // what is behind the last one has no match
  size_t at = 0;
  for (size_t own = 0; own < offer.indices.size(); ++own) {
    const bool was_sent = at < count && sent.indices[at] == offer.indices[own];
    taken[own] = of_sent[at] & -static_cast<int32_t>(was_sent);
    at += was_sent ? 1 : 0;
  }
  return at == count;
}

/// A filter took more along than was offered.
void settle_with_extras(const Offer& offer, const Contribution& sent, const IndexSet& update, const IndexSet* kept,
                        double step, uint32_t begin, Settlement& out) {
  const auto is_applied = [&](uint16_t index) {
    return update.holds(index) && (kept == nullptr || kept->holds(index));
  };
  size_t at = 0;
  const auto take_along = [&](uint32_t below) {
    for (; at < sent.indices.size() && sent.indices[at] < below; ++at) {
      const int32_t taken = is_applied(sent.indices[at]) ? sent.integers[at] : 0;
      if (taken != 0) out.extra.push_back({begin + sent.indices[at], taken, remainder(0, taken, step)});
    }
  };
  for (size_t own = 0; own < offer.indices.size(); ++own) {
    const uint16_t index = offer.indices[own];
    take_along(index);
    const bool was_sent = at < sent.indices.size() && sent.indices[at] == index;
    const int32_t taken = was_sent && is_applied(index) ? sent.integers[at] : 0;
    at += was_sent ? 1 : 0;
    out.taken[own] = taken;
    out.back[own] = remainder(offer.values[own], taken, step);
  }
  take_along(UINT32_MAX);
}

}  // namespace

void settle(const Offer& offer, const Contribution& sent, const std::vector<uint16_t>* update,
            const std::vector<uint16_t>* kept, uint32_t window_begin, Settlement& out) {
  Applied& sets = applied_room();
  const std::span<const uint16_t> in_update = update != nullptr ? *update : std::span<const uint16_t>();
  const std::span<const uint16_t> in_rack = kept != nullptr ? *kept : std::span<const uint16_t>();
  sets.update.fill(in_update);
  sets.kept.fill(in_rack);
  out.taken.resize(offer.indices.size());
  out.back.resize(offer.indices.size());
  out.extra.clear();
  const double step = grid_step(sent.fragments.front().header.exponent);
  const IndexSet* const kept_set = kept != nullptr ? &sets.kept : nullptr;
  const bool is_alike = offer.indices == sent.indices;
  if (is_alike) take_applied(offer.indices, sent.integers, sets.update, kept_set, out.taken);
  if (is_alike || take_of_part(offer, sent, sets.update, kept_set, out.taken)) {
    take_integers_off(offer.values, out.taken, step, out.back);
  } else {
    settle_with_extras(offer, sent, sets.update, kept_set, step, window_begin, out);
  }
  sets.update.erase(in_update);
  sets.kept.erase(in_rack);
}

}  // namespace millrace::worker
