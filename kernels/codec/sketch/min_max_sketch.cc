#include "kernels/codec/sketch/min_max_sketch.h"

#include <algorithm>

namespace millrace {
namespace {

constexpr uint8_t kNothing = 255;

uint32_t columns_of(uint64_t members) { return static_cast<uint32_t>((3 * members + 9) / 10); }

}  // namespace

MinMaxSketch::MinMaxSketch(uint64_t seed, const std::array<uint64_t, kSketchTags>& members) {
  uint64_t cells = 0;
  for (uint32_t tag = 0; tag < kSketchTags; ++tag) {
    tables_[tag] = {cells, BloomHashes::from(seed, columns_of(members[tag]), kSketchRows)};
    cells += cells_of(members[tag]);
  }
  cells_.resize(cells);
  std::ranges::fill(cells_, kNothing);
}

uint64_t MinMaxSketch::cells_of(uint64_t members) { return uint64_t{columns_of(members)} * kSketchRows; }

void MinMaxSketch::clear_unused_cells() { std::ranges::replace(cells_, kNothing, uint8_t{0}); }

}  // namespace millrace
