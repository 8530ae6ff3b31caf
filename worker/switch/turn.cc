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

/// On the grid, without the zeros.
struct Rounded {
  std::vector<uint16_t> indices;
  std::vector<int32_t> integers;
  uint32_t saturated = 0;
};

Rounded round_offer(const Offer& offer, int exponent, int32_t limit) {
  Rounded out;
  const size_t count = offer.indices.size();
  if (count == 0) return out;
  out.indices.resize(count);
  out.integers.resize(count);
  out.saturated = to_grid(offer.values, exponent, limit, out.integers);
  if (std::ranges::find(out.integers, 0) == out.integers.end()) {
    out.indices = offer.indices;
    return out;
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
  parts_.clear();
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
  if (is_last && parts_.size() > header.fragment + size_t{1}) return true;
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
  if (whole_ || (header.fragment < parts_.size() && parts_[header.fragment])) return Taken::kDuplicate;
  if (!protocol::read_result_terms(datagram.extension)) return Taken::kBadPayload;
  if (contradicts(datagram)) return Taken::kContradiction;
  DecodeRoom& room = decode_room();
  const auto count = room.decode(header, datagram.payload, window_indices);
  if (!count || !protocol::KeptMarks::read(datagram.extension, *count)) return Taken::kBadPayload;
  if (count_ == 0) first_ = header;
  if (header.fragment >= parts_.size()) parts_.resize(header.fragment + size_t{1});
  const auto decoded_indices = std::span(room.indices).first(*count);
  const auto decoded_integers = std::span(room.integers).first(*count);
  const bool is_all = header.fragment == 0 && (header.flags & flag::kLast) != 0;
  parts_[header.fragment] = Part{
      .packet = {.header = header,
                 .extension = ByteBuffer(datagram.extension.begin(), datagram.extension.end()),
                 .payload = ByteBuffer(datagram.payload.begin(), datagram.payload.end())},
      .indices =
          is_all ? std::vector<uint16_t>() : std::vector<uint16_t>(decoded_indices.begin(), decoded_indices.end()),
      .integers =
          is_all ? std::vector<int32_t>() : std::vector<int32_t>(decoded_integers.begin(), decoded_integers.end()),
  };
  ++count_;
  if ((header.flags & flag::kLast) != 0) last_ = header.fragment;
  if (is_all) {
    join_racks(*parts_.front(), *count);
    indices_.assign(decoded_indices.begin(), decoded_indices.end());
    integers_.assign(decoded_integers.begin(), decoded_integers.end());
    whole_ = true;
    return Taken::kWhole;
  }
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

std::vector<Fragment> Gathering::take_packets() {
  std::vector<Fragment> out;
  out.reserve(count_);
  for (size_t i = 0; i < count_; ++i) out.push_back(std::move(parts_[i]->packet));
  return out;
}

namespace {

/// A window's indices as bits: who asks for each of many asks in no time.
class IndexSet {
 public:
  IndexSet() : words_(protocol::kWindowIndicesMax / 32) {}
  void insert(std::span<const uint16_t> indices) {
    for (const uint16_t index : indices) words_[index / 32] |= uint32_t{1} << (index % 32);
  }
  void erase(std::span<const uint16_t> indices) {
    for (const uint16_t index : indices) words_[index / 32] = 0;
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
  sets.update.insert(in_update);
  sets.kept.insert(in_rack);
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
