#include "switch_agg/logged_sum.h"

#include <cstring>
#include <utility>

namespace millrace::switch_agg {

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
    return;
  }
  own_.add_in_any_order(logged(), headroom_);
  logged_ = 0;
  is_added_ = true;
  own_.add(entries, headroom);
}

WindowSum::Taken LoggedSum::take(std::span<uint16_t> indices, std::span<int32_t> values) {
  if (std::exchange(is_added_, false)) return own_.take(indices, values);
  WindowSum shared(memory_.shared);
  shared.add_in_any_order(logged(), headroom_);
  logged_ = 0;
  return shared.take(indices, values);
}

void LoggedSum::clear() {
  if (std::exchange(is_added_, false)) own_.clear();
  logged_ = 0;
}

}  // namespace millrace::switch_agg
