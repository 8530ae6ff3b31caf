#pragma once

#include <cstdint>
#include <span>

/// Loops of grid.h over many values, for each instruction set. All spans of a call have the same length. Threads:
/// reentrant.
namespace millrace {

/// Rounds value x `inverse` to the nearest integer (ties to even), bounded by +-most. Returns how many reach the bound.
/// REQUIRES: 0 < most < 2^31; values finite, times `inverse` in f64's range.
uint32_t round_to_integers(std::span<const float> values, double inverse, double most, std::span<int32_t> out);

/// Computes integer x step, in f64, rounded to f32.
void scale_integers(std::span<const int32_t> integers, double step, std::span<float> out);

}  // namespace millrace
