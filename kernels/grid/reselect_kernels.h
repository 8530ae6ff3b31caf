#pragma once

#include <cstdint>
#include <span>

namespace millrace {

constexpr unsigned kSumBinFractionBits = 5;

/// Keeps in place the entries whose magnitude is at least `least` (2^31 is that of the lowest number), in their order;
/// returns how many. What lies behind them is overwritten too.
///
/// indices, values  of the same length.
/// Threads          reentrant.
uint32_t keep_at_least(uint32_t least, std::span<uint16_t> indices, std::span<int32_t> values);

/// Bins of magnitudes as SumHistogram::bin_of() has them: 0 for 0, otherwise its f64's exponent and kSumBinFractionBits
/// bits of fraction, as one number, plus `moved`.
///
/// bins     [values]
/// Threads  reentrant.
void bins_of(std::span<const int32_t> values, int moved, std::span<uint32_t> bins);

}  // namespace millrace
