#include "switch_agg/slot/logged_sum.h"

#include <cstring>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/packet/entry_sum.h"

namespace millrace::switch_agg {
namespace {

/// A bound that no sum is allowed.
constexpr uint64_t kOver = std::numeric_limits<uint32_t>::max();
constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
constexpr uint64_t kBoundMax = kMost;

}  // namespace

using protocol::WindowEntries;

void LoggedSum::add(const WindowEntries& entries, int32_t headroom) {
  const size_t count = entries.indices.size();
  if (count == 0) return;
  const bool is_run = entries.indices.back() - entries.indices.front() + size_t{1} == count;
  const bool is_alike = logged_ == 0 || headroom == headroom_;
  if (!is_added_ && !is_run && is_alike) {
    // A packet names an index once: each can add its largest value, and no more.
    const uint32_t largest = largest_magnitude(entries.values);
    const bool is_over = largest > static_cast<uint32_t>(headroom);
    if (!is_over && add_in_place(entries, largest)) return;
    if (count <= memory_.log_values.size() - logged_) {
      const bool is_next = logged_ == 0 || memory_.log_indices[logged_ - 1] < entries.indices.front();
      const bool is_ordered = logged_ == ordered_ && is_next && !is_over && sets_ < kSetsMax;
      std::memcpy(memory_.log_indices.data() + logged_, entries.indices.data(), entries.indices.size_bytes());
      std::memcpy(memory_.log_values.data() + logged_, entries.values.data(), entries.values.size_bytes());
      logged_ += count;
      headroom_ = headroom;
      bound_ += is_over ? kOver : largest;
      if (is_ordered) set_ends_[sets_++] = ordered_ = logged_;
      return;
    }
  }
  flush_log();
  own_.add(entries, headroom);
}

/// Adds entries to logged ones with the same indices. Later entries of the same index do not matter: within the bound
/// no sum leaves i32, in any order.
bool LoggedSum::add_in_place(const WindowEntries& entries, uint32_t largest) {
  if (bound_ + largest > kBoundMax) return false;
  const std::span<const uint16_t> indices = entries.indices;
  size_t begin = 0;
  for (const size_t end : std::span(set_ends_).first(sets_)) {
    const size_t count = end - begin;
    if (count == indices.size() &&
        std::memcmp(indices.data(), memory_.log_indices.data() + begin, indices.size_bytes()) == 0) {
      add_values(memory_.log_values.subspan(begin, count), entries.values);
      bound_ += largest;
      return true;
    }
    begin = end;
  }
  return false;
}

void LoggedSum::flush_log() {
  const WindowEntries all = logged();
  own_.add_in_any_order({all.indices.first(ordered_), all.values.first(ordered_)}, kMost);
  own_.add_in_any_order({all.indices.subspan(ordered_), all.values.subspan(ordered_)}, headroom_);
  forget_log();
  is_added_ = true;
}

WindowSum::Taken LoggedSum::take(std::span<uint16_t> indices, std::span<int32_t> values) {
  if (bound_ > kBoundMax) [[unlikely]]
    flush_log();
  if (std::exchange(is_added_, false)) return own_.take(indices, values);
  const WindowEntries all = logged();
  WindowSum::Taken taken;
  if (logged_ == ordered_) {
    MILLRACE_CHECK(indices.size() >= logged_ && values.size() >= logged_, indices.size(), values.size());
    std::memcpy(indices.data(), all.indices.data(), all.indices.size_bytes());
    std::memcpy(values.data(), all.values.data(), all.values.size_bytes());
    taken.count = static_cast<uint32_t>(logged_);
  } else {
    taken.count = sum_entries(
        all.indices, all.values,
        {.present = memory_.shared_present, .ranks = memory_.shared_ranks, .indices = indices, .values = values});
  }
  taken.magnitude_or = magnitudes_or(values.first(taken.count));
  forget_log();
  return taken;
}

void LoggedSum::clear() {
  if (std::exchange(is_added_, false)) own_.clear();
  forget_log();
}

}  // namespace millrace::switch_agg
