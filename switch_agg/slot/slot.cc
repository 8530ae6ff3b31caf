#include "switch_agg/slot/slot.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace millrace::switch_agg {
namespace {

/// Part of a window's indices for which there is room in a log. With more, the log touches more memory than the sums
/// do.
constexpr uint32_t kLogPart = 4;

/// Over the first `window_indices` of memory for more.
WindowMemory window_memory(std::span<int32_t> sums, std::span<uint64_t> bits, uint32_t window_indices) {
  const size_t words = window_indices / 64;
  return {.sums = sums.first(window_indices),
          .present = bits.first(words),
          .omitted = bits.subspan(bits.size() / 2, words)};
}

}  // namespace

void Slot::claim(const protocol::DatagramHeader& header) {
  MILLRACE_CHECK(!open && header.turn == cur + 1, cur, header.turn);
  cur = header.turn;
  open = true;
  successor_known = false;
  step = header.step;
  window = header.window;
  exponent = header.exponent;
  next = protocol::kNoWindow;
  all_fin = true;
  begun = 0;
  whole = 0;
  grouped = 0;
  have.fill(0);
  kept_of(cur).begin(cur);
}

void Slot::take_unit(const protocol::DatagramHeader& header) {
  const uint64_t bit = uint64_t{1} << header.worker;
  Part& part = parts[header.worker];
  if ((begun & bit) == 0) {
    part = {.next = header.next};
    begun |= bit;
    next = std::min(next, header.next);  // kNoWindow is the largest number
    all_fin = all_fin && (header.flags & protocol::datagram_flag::kFin) != 0;
  }
  have[header.fragment] |= bit;
  ++part.fragments;
  part.top = std::max(part.top, header.fragment);
  if ((header.flags & protocol::datagram_flag::kLast) != 0) part.last = header.fragment;
  if (part.last != kUnknown && part.fragments == part.last + 1) whole |= bit;
}

void Slot::take_group(uint64_t workers, const protocol::DatagramHeader& header) {
  MILLRACE_CHECK((begun & workers) == 0, begun, workers);
  begun |= workers;
  whole |= workers;
  grouped |= workers;
  next = std::min(next, header.next);
  all_fin = all_fin && (header.flags & protocol::datagram_flag::kFin) != 0;
}

void Slot::set_closed(uint64_t turn) {
  if (open) sum.clear();
  open = false;
  cur = turn;
  successor_known = false;
  kept_of(turn).begin(turn);
  kept_of(turn + 1).begin(turn - 1);
  answer_after.fill(0);
}

void Slot::set_successor(uint32_t own, uint32_t step_now, uint32_t next_window) {
  successor_known = true;
  // A step's opening: the slot's first window. Steps do not wrap: the packet of a step after the last is refused.
  successor_step = next_window == protocol::kNoWindow ? step_now + 1 : step_now;
  successor_window = next_window == protocol::kNoWindow ? own : next_window;
}

SlotPool::SlotPool(uint32_t slots_max, uint32_t window_indices_max, uint32_t packet_bytes_max)
    : window_indices_max_(window_indices_max),
      packet_bytes_max_(packet_bytes_max),
      sums_(size_t{slots_max} * window_indices_max),
      bits_(size_t{slots_max} * 2 * (window_indices_max / 64)),
      log_values_(size_t{slots_max} * (window_indices_max / kLogPart)),
      log_indices_(size_t{slots_max} * (window_indices_max / kLogPart)),
      shared_present_(window_indices_max / 64),
      shared_ranks_(window_indices_max / 64),
      results_(size_t{slots_max} * 2 * protocol::kFragmentsMax * packet_bytes_max),
      slots_(slots_max) {
  free_.reserve(slots_max);
  for (uint32_t slot = slots_max; slot-- > 0;) free_.push_back(static_cast<uint16_t>(slot));
}

bool SlotPool::reserve(uint32_t slots, const SlotShape& shape, std::vector<uint16_t>& out) {
  const uint32_t window_indices = shape.window_indices;
  MILLRACE_CHECK(out.empty() && window_indices <= window_indices_max_, out.size(), window_indices);
  MILLRACE_CHECK(shape.packet_bytes <= packet_bytes_max_, shape.packet_bytes, packet_bytes_max_);
  const size_t result_bytes = protocol::kFragmentsMax * size_t{packet_bytes_max_};
  if (slots > free_.size()) return false;
  const size_t words = window_indices_max_ / 64;
  for (uint32_t taken = 0; taken < slots; ++taken) {
    const uint16_t at = free_.back();
    free_.pop_back();
    out.push_back(at);
    const std::span<uint64_t> bits = bits_.span().subspan(at * 2 * words, 2 * words);
    const std::span<int32_t> sums = sums_.span().subspan(size_t{at} * window_indices_max_, window_indices_max_);
    const size_t log_max = window_indices_max_ / kLogPart;
    const size_t log = window_indices / kLogPart;
    slots_[at].sum = LoggedSum({.own = window_memory(sums, bits, window_indices),
                                .shared_present = shared_present_.span().first(window_indices / 64),
                                .shared_ranks = shared_ranks_.span().first(window_indices / 64),
                                .log_indices = log_indices_.span().subspan(at * log_max, log),
                                .log_values = log_values_.span().subspan(at * log_max, log)});
    for (size_t version = 0; version < 2; ++version) {
      const size_t begin = (size_t{at} * 2 + version) * result_bytes;
      slots_[at].kept[version] = KeptResult(results_.span().subspan(begin, result_bytes), shape.packet_bytes);
    }
    slots_[at].set_closed(0);
  }
  return true;
}

void SlotPool::give_back(std::vector<uint16_t>& slots) {
  for (const uint16_t slot : slots) {
    slots_[slot].set_closed(0);
    free_.push_back(slot);
  }
  slots.clear();
}

}  // namespace millrace::switch_agg
