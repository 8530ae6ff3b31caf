#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>

#include "kernels/base/check.h"
#include "kernels/reduce/magnitude_histogram.h"
#include "kernels/reduce/threshold_scan.h"

namespace millrace {
namespace {

// Values scanned at a time: their positions stay in L1 until they are appended.
constexpr size_t kHistogramBlock = 2048;

// The bins from here on are those of infinity and NaN.
constexpr uint32_t kFiniteBins = 0x7f80;

/// The least magnitude of a bin: dropping low bits is monotone, so bin_of(x) >= bin exactly where |x| >= bin_edge(bin).
float bin_edge(uint32_t bin) { return std::bit_cast<float>(bin << 16); }

/// Drops all but the `take` largest of those positions whose magnitude is below `next_edge`; ties by lower position.
void trim_boundary(std::span<const float> values, float next_edge, uint64_t take, IndexBuffer& positions) {
  Buffer<float> boundary(positions.size() + 1);
  size_t in_bin = 0;
  for (const uint32_t position : positions) {
    const float magnitude = std::fabs(values[position]);
    boundary[in_bin] = magnitude;
    in_bin += magnitude < next_edge ? 1 : 0;
  }
  if (take >= in_bin) return;
  boundary.resize(in_bin);
  float least = next_edge;  // of those that stay
  uint64_t ties = 0;        // how many of exactly that magnitude stay
  if (take > 0) {
    const auto last = boundary.begin() + static_cast<ptrdiff_t>(take - 1);
    std::nth_element(boundary.begin(), last, boundary.end(), std::greater<>());
    least = *last;
    ties = static_cast<uint64_t>(std::count(boundary.begin(), last + 1, least));
  }
  size_t kept = 0;
  for (const uint32_t position : positions) {
    const float magnitude = std::fabs(values[position]);
    const bool tie = magnitude == least && magnitude < next_edge;
    const bool stays = tie ? ties > 0 : magnitude >= least;
    ties -= tie && stays ? 1 : 0;
    positions[kept] = position;
    kept += stays ? 1 : 0;
  }
  positions.resize(kept);
}

}  // namespace

void select_by_histogram(std::span<const float> values, uint32_t threshold_bin, uint64_t take, IndexBuffer& positions) {
  MILLRACE_CHECK(values.size() <= kDimensionMax, values.size());
  positions.clear();
  if (threshold_bin >= kFiniteBins) return;
  // Of bin 0 nothing is selected: the boundary is then below all scanned values.
  const float edge = bin_edge(std::max(threshold_bin, 1u));
  std::array<uint32_t, kHistogramBlock + kThresholdScanSlack> block;
  for (size_t begin = 0; begin < values.size(); begin += kHistogramBlock) {
    const size_t count = std::min(kHistogramBlock, values.size() - begin);
    const size_t found = scan_at_least(values.data() + begin, count, edge, static_cast<uint32_t>(begin), block.data());
    positions.insert(positions.end(), block.begin(), block.begin() + static_cast<ptrdiff_t>(found));
  }
  trim_boundary(values, bin_edge(threshold_bin + 1), take, positions);
}

}  // namespace millrace
