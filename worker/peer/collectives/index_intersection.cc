#include "worker/peer/collectives/index_intersection.h"

#include <algorithm>
#include <array>

namespace millrace::peer {
namespace {

/// A part of `one` and the matching part of `other` lie between its ends.
struct Walk {
  size_t i = 0, i_end = 0;
  size_t j = 0, j_end = 0;
  size_t begin = 0, written = 0;  ///< of the positions

  /// This number of steps at least stays within both ends: a step advances by one at most in either.
  size_t steps() const { return std::min(i_end - i, j_end - j); }
};

inline void step(Walk& walk, const uint32_t* one, const uint32_t* other, uint32_t* positions) {
  // By the signs of differences: of comparisons compilers make branches.
  const uint64_t a = one[walk.i], b = other[walk.j];
  const uint64_t not_after = 1 - ((b - a) >> 63), not_before = 1 - ((a - b) >> 63);
  positions[walk.written] = static_cast<uint32_t>(walk.i);
  walk.written += not_after & not_before;
  walk.i += not_after;
  walk.j += not_before;
}

/// Each step waits for the loads of the one before: four walks side by side take as long as one.
void walk_together(std::array<Walk, 4>& walks, const uint32_t* one, const uint32_t* other, uint32_t* positions) {
  auto [first, second, third, fourth] = walks;  // in registers
  while (const size_t steps = std::min({first.steps(), second.steps(), third.steps(), fourth.steps()})) {
    for (size_t at = 0; at < steps; ++at) {
      step(first, one, other, positions);
      step(second, one, other, positions);
      step(third, one, other, positions);
      step(fourth, one, other, positions);
    }
  }
  walks = {first, second, third, fourth};
}

}  // namespace

IndexBuffer positions_in_both(IndexSpan one, IndexSpan other) {
  std::array<Walk, 4> walks;
  IndexBuffer positions(one.size());
  for (size_t w = 0; w < walks.size(); ++w) {
    Walk& walk = walks[w];
    walk.i = walk.begin = walk.written = one.size() * w / walks.size();
    walk.i_end = one.size() * (w + 1) / walks.size();
    const auto from = walk.i < one.size() ? std::ranges::lower_bound(other, one[walk.i]) : other.end();
    walk.j = static_cast<size_t>(from - other.begin());
    walk.j_end = other.size();
    if (w > 0) walks[w - 1].j_end = walk.j;
  }
  walk_together(walks, one.data(), other.data(), positions.data());
  size_t count = 0;
  for (Walk& walk : walks) {
    while (walk.steps() > 0) step(walk, one.data(), other.data(), positions.data());
    for (size_t at = walk.begin; at < walk.written; ++at) positions[count++] = positions[at];
  }
  positions.resize(count);
  return positions;
}

}  // namespace millrace::peer
