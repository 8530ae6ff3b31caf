#pragma once

#include <cstdint>
#include <span>

namespace millrace {

enum class Sign : uint8_t { kPositive, kNegative };

/// Copies the values of one sign; the others become 0. NaN and infinity of either sign are copied, so that they are
/// still found.
///
/// values, filtered   [n] each; they do not overlap.
void keep_sign(std::span<const float> values, Sign sign, std::span<float> filtered);

}  // namespace millrace
