#include "worker/switch/turn.h"

#include <algorithm>
#include <array>
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

/// What drop_entries() left: of one result at a time of all slots.
struct JoinRoom {
  std::vector<uint16_t> indices;
  std::vector<int32_t> integers;
};

JoinRoom& join_room() {
  thread_local JoinRoom room;
  return room;
}

/// All of it rounds to 0: the largest is sent as that.
void keep_largest(const Offer& offer, Contribution& out) {
  const auto smaller = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
  const auto largest = std::ranges::max_element(offer.values, smaller);
  if (*largest == 0) return;
  const auto position = largest - offer.values.begin();
  out.indices[0] = offer.indices[static_cast<size_t>(position)];
  out.integers[0] = 0;
  out.skipped.erase(out.skipped.begin() + position);
}

/// On the grid, without the zeros: out's indices and integers, and which are skipped.
void round_offer(const Offer& offer, int exponent, int32_t limit, Contribution& out) {
  const size_t count = offer.indices.size();
  out.indices.resize(count);
  out.integers.resize(count);
  out.skipped.clear();
  out.offered = static_cast<uint32_t>(count);
  out.saturated = 0;
  if (count == 0) return;
  out.saturated = to_grid(offer.values, exponent, limit, out.integers);
  const auto zeros = static_cast<size_t>(std::ranges::count(out.integers, 0));
  if (zeros == 0) {
    std::ranges::copy(offer.indices, out.indices.begin());
    return;
  }
  out.skipped.resize(zeros + 1);  // one that is written and does not count, behind the last zero
  size_t kept = 0;
  size_t skipped = 0;
  for (size_t i = 0; i < count; ++i) {
    out.indices[kept] = offer.indices[i];
    out.integers[kept] = out.integers[i];
    out.skipped[skipped] = static_cast<uint32_t>(i);
    const bool is_zero = out.integers[i] == 0;
    kept += is_zero ? 0 : 1;
    skipped += is_zero ? 1 : 0;
  }
  out.skipped.resize(zeros);
  if (kept == 0) keep_largest(offer, out);
  out.indices.resize(count - out.skipped.size());
  out.integers.resize(out.indices.size());
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
  /// Puts a word together beside its memory: neighbours would wait for stores.
  struct Filler {
    uint32_t* words;
    uint32_t word = 0;
    uint32_t at = 0;

    void add(uint16_t index) {
      word = index / 32u == at ? word : 0;
      at = index / 32u;
      word |= uint32_t{1} << (index % 32);
      words[at] = word;
    }
  };

 public:
  IndexSet() : words_(protocol::kWindowIndicesMax / 32) {}
  /// Ascending indices, into an empty set. From two places at once: each goes on where its last word is known.
  void fill(std::span<const uint16_t> indices) {
    size_t middle = indices.size() / 2;
    while (middle > 0 && indices[middle - 1] / 32 == indices[middle] / 32) --middle;
    Filler low{words_.data()};
    Filler high{words_.data()};
    const size_t pairs = std::min(middle, indices.size() - middle);
    for (size_t i = 0; i < pairs; ++i) {
      low.add(indices[i]);
      high.add(indices[middle + i]);
    }
    for (size_t i = pairs; i < middle; ++i) low.add(indices[i]);
    for (size_t i = middle + pairs; i < indices.size(); ++i) high.add(indices[i]);
  }
  /// Of what fill() had: all of the words between the first and the last, which is the faster way.
  void erase(std::span<const uint16_t> indices) {
    if (indices.empty()) return;
    std::fill(words_.begin() + indices.front() / 32, words_.begin() + indices.back() / 32 + 1, 0);
  }
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

/// Of each entry what was applied.
///
/// kept  null: the rack kept all of it.
void take_applied(std::span<const uint16_t> indices, std::span<const int32_t> integers, const IndexSet& update,
                  const IndexSet* kept, std::span<int32_t> taken) {
  take_where_set(indices, integers, update.words(), taken);
  if (kept != nullptr) take_where_set(indices, taken, kept->words(), taken);
}

/// Of each offered entry, by those that were sent: the others have nothing.
void spread_taken(std::span<const int32_t> of_sent, std::span<const uint32_t> skipped, std::span<int32_t> taken) {
  auto to = taken.begin();
  auto from = of_sent.begin();
  const auto copy_run = [&](size_t entries) {
    const auto run = std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(entries), of_sent.end() - from);
    to = std::copy_n(from, run, to);
    from += run;
  };
  for (const uint32_t position : skipped) {
    copy_run(position - static_cast<size_t>(to - taken.begin()));
    to = std::fill_n(to, position + 1 - (to - taken.begin()), 0);
  }
  copy_run(of_sent.size());
  std::fill(to, taken.end(), 0);
}

}  // namespace

void settle(const Contribution& sent, const std::vector<uint16_t>* update, const std::vector<uint16_t>* kept,
            Buffer<int32_t>& taken) {
  taken.resize(sent.offered);
  if (update == nullptr) {
    std::ranges::fill(taken, 0);
    return;
  }
  Applied& sets = applied_room();
  sets.update.fill(*update);
  if (kept != nullptr) sets.kept.fill(*kept);
  const IndexSet* const kept_set = kept != nullptr ? &sets.kept : nullptr;
  const size_t count = sent.indices.size();
  if (count == sent.offered) {
    take_applied(sent.indices, sent.integers, sets.update, kept_set, taken);
  } else {
    std::vector<int32_t>& of_sent = taken_room();
    of_sent.resize(count);
    take_applied(sent.indices, sent.integers, sets.update, kept_set, of_sent);
    spread_taken(of_sent, sent.skipped, taken);
  }
  sets.update.erase(*update);
  if (kept != nullptr) sets.kept.erase(*kept);
}

}  // namespace millrace::worker
