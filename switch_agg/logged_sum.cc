#include "switch_agg/logged_sum.h"

#include <cstring>
#include <limits>
#include <utility>

#include "kernels/window/entry_sum.h"

namespace millrace::switch_agg {
namespace {

/// A bound that no sum is allowed.
constexpr uint64_t kOver = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kBoundMax = std::numeric_limits<int32_t>::max();

}  // namespace

using protocol::WindowEntries;

void LoggedSum::add(const WindowEntries& entries, int32_t headroom) {
  const size_t count = entries.indices.size();
  if (count == 0) return;
  const bool is_run = entries.indices.back() - entries.indices.front() + size_t{1} == count;
  const bool is_alike = logged_ == 0 || headroom == headroom_;
  if (!is_added_ && !is_run && is_alike && count <= memory_.log_values.size() - logged_) {
    std::memcpy(memory_.log_indices.data() + logged_, entries.indices.data(), entries.indices.size_bytes());
    std::memcpy(memory_.log_values.data() + logged_, entries.values.data(), entries.values.size_bytes());
    logged_ += count;
    headroom_ = headroom;
    // A packet names an index once: each can add its largest value, and no more.
    const uint32_t largest = largest_magnitude(entries.values);
    bound_ += largest <= static_cast<uint32_t>(headroom) ? largest : kOver;
    return;
  }
  flush_log();
  own_.add(entries, headroom);
}

void LoggedSum::flush_log() {
  own_.add_in_any_order(logged(), headroom_);
  forget_log();
  is_added_ = true;
}

WindowSum::Taken LoggedSum::take(std::span<uint16_t> indices, std::span<int32_t> values) {
  if (bound_ > kBoundMax) [[unlikely]]
    flush_log();
  if (std::exchange(is_added_, false)) return own_.take(indices, values);
  WindowSum::Taken taken;
  taken.count = sum_entries(
      logged().indices, logged().values,
      {.present = memory_.shared_present, .ranks = memory_.shared_ranks, .indices = indices, .values = values});
  taken.magnitude_or = magnitudes_or(values.first(taken.count));
  forget_log();
  return taken;
}

void LoggedSum::clear() {
  if (std::exchange(is_added_, false)) own_.clear();
  forget_log();
}

}  // namespace millrace::switch_agg
