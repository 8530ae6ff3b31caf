#include "switch_agg/slot/window_sum.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "kernels/packet/set_bits.h"

namespace millrace::switch_agg {
namespace {

using protocol::WindowEntries;

/// |value|, 2^31 for the lowest.
uint32_t magnitude(int32_t value) {
  const auto bits = static_cast<uint32_t>(value);
  return value < 0 ? 0 - bits : bits;
}

/// 1 where |value| > headroom, without a branch.
uint32_t window_sum_is_over(int32_t value, int32_t headroom) {
  const auto room = static_cast<uint32_t>(headroom);
  return static_cast<uint32_t>(static_cast<uint32_t>(value) + room > 2 * room);
}

/// Two's complement; `overflow` gets its sign bit set where the true sum is not this one.
int32_t wrapping_sum(int32_t a, int32_t b, uint32_t& overflow) {
  const uint32_t sum = static_cast<uint32_t>(a) + static_cast<uint32_t>(b);
  overflow |= (static_cast<uint32_t>(a) ^ sum) & (static_cast<uint32_t>(b) ^ sum);
  return static_cast<int32_t>(sum);
}

constexpr uint32_t kSignBit = 0x8000'0000;

/// The lowest number has no opposite, and no place in a payload.
void leave_out_lowest(std::span<uint16_t> indices, std::span<int32_t> values, WindowSum::Taken& taken) {
  uint32_t kept = 0;
  taken.magnitude_or = 0;
  for (uint32_t at = 0; at < taken.count; ++at) {
    const bool fits = values[at] != std::numeric_limits<int32_t>::min();
    taken.magnitude_or |= fits ? magnitude(values[at]) : 0;
    indices[kept] = indices[at];
    values[kept] = values[at];
    kept += fits;
  }
  taken.omitted += taken.count - kept;
  taken.count = kept;
}

/// Bits [first, first + count) of a bitmap.
void set_run(std::span<uint64_t> bits, uint32_t first, uint32_t count) {
  uint32_t at = first;
  const uint32_t end = first + count;
  while (at < end) {
    const uint32_t word = at / 64;
    const uint32_t in_word = std::min(end - at, 64 - at % 64);
    const uint64_t ones = in_word == 64 ? ~uint64_t{0} : (uint64_t{1} << in_word) - 1;
    bits[word] |= ones << (at % 64);
    at += in_word;
  }
}

}  // namespace

void WindowSum::add(const WindowEntries& entries, int32_t headroom) {
  if (entries.indices.empty()) return;
  const uint32_t first = entries.indices.front();
  const auto count = static_cast<uint32_t>(entries.indices.size());
  const uint32_t over = entries.indices.back() - first + 1 == count ? add_run(first, entries.values, headroom)
                                                                    : add_scattered(entries, headroom);
  if (over != 0) [[unlikely]]
    omit_over(entries, headroom);
}

void WindowSum::add_in_any_order(const WindowEntries& entries, int32_t headroom) {
  if (add_scattered(entries, headroom) != 0) [[unlikely]]
    omit_over(entries, headroom);
}

/// Omits values over the headroom, which only a hostile sender sends. Sums that include such a value do not matter any
/// more.
void WindowSum::omit_over(const WindowEntries& entries, int32_t headroom) {
  for (size_t at = 0; at < entries.indices.size(); ++at) {
    if (magnitude(entries.values[at]) > static_cast<uint32_t>(headroom)) omit(entries.indices[at]);
  }
}

uint32_t WindowSum::add_run(uint32_t first, std::span<const int32_t> values, int32_t headroom) {
  int32_t* const sums = memory_.sums.data() + first;
  uint32_t overflow = 0;
  uint32_t over = 0;
  for (size_t at = 0; at < values.size(); ++at) {
    over |= window_sum_is_over(values[at], headroom);
    sums[at] = wrapping_sum(sums[at], values[at], overflow);
  }
  set_run(memory_.present, first, static_cast<uint32_t>(values.size()));
  if ((overflow & kSignBit) == 0) [[likely]]
    return over;
  // Which ones? Undone, a sum that was in range has left it where adding again overflows.
  for (size_t at = 0; at < values.size(); ++at) {
    uint32_t undone = 0;
    const auto before = static_cast<int32_t>(static_cast<uint32_t>(sums[at]) - static_cast<uint32_t>(values[at]));
    (void)wrapping_sum(before, values[at], undone);
    if ((undone & kSignBit) != 0) omit(first + static_cast<uint32_t>(at));
  }
  return over;
}

uint32_t WindowSum::add_scattered(const WindowEntries& entries, int32_t headroom) {
  int32_t* const sums = memory_.sums.data();
  uint64_t* const present = memory_.present.data();
  const uint16_t* const indices = entries.indices.data();
  const int32_t* const values = entries.values.data();
  uint32_t over = 0;
  for (size_t at = 0; at < entries.indices.size(); ++at) {
    const uint32_t index = indices[at];
    over |= window_sum_is_over(values[at], headroom);
    present[index / 64] |= uint64_t{1} << (index % 64);
    // Costs a branch that is predicted: only a hostile sender makes it taken.
    if (__builtin_add_overflow(sums[index], values[at], &sums[index])) [[unlikely]]
      omit(index);
  }
  return over;
}

void WindowSum::omit(uint32_t index) {
  memory_.omitted[index / 64] |= uint64_t{1} << (index % 64);
  omits_ = true;
}

WindowSum::Taken WindowSum::take(std::span<uint16_t> indices, std::span<int32_t> values) {
  Taken taken;
  if (omits_) [[unlikely]]
    taken.omitted = take_omitted();
  taken.count = static_cast<uint32_t>(set_bits(memory_.present, indices));
  std::ranges::fill(memory_.present, 0);
  int32_t* const sums = memory_.sums.data();
  for (uint32_t at = 0; at < taken.count; ++at) {
    const int32_t sum = std::exchange(sums[indices[at]], 0);
    values[at] = sum;
    taken.magnitude_or |= magnitude(sum);
  }
  if ((taken.magnitude_or & kSignBit) != 0) [[unlikely]]
    leave_out_lowest(indices, values, taken);
  return taken;
}

/// Zeros the omitted sums, and removes their marks.
uint32_t WindowSum::take_omitted() {
  uint32_t omitted = 0;
  for (size_t word = 0; word < memory_.omitted.size(); ++word) {
    const uint64_t bits = std::exchange(memory_.omitted[word], 0);
    memory_.present[word] &= ~bits;
    for (uint64_t out = bits; out != 0; out &= out - 1) {
      memory_.sums[word * 64 + static_cast<size_t>(std::countr_zero(out))] = 0;
      ++omitted;
    }
  }
  omits_ = false;
  return omitted;
}

void WindowSum::clear() {
  for (size_t word = 0; word < memory_.present.size(); ++word) {
    for (uint64_t bits = memory_.present[word]; bits != 0; bits &= bits - 1) {
      memory_.sums[word * 64 + static_cast<size_t>(std::countr_zero(bits))] = 0;
    }
    memory_.present[word] = 0;
    memory_.omitted[word] = 0;
  }
  omits_ = false;
}

}  // namespace millrace::switch_agg
