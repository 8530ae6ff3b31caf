#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/codec/bloom/bloom_scan.h"

namespace millrace {

/// Groups of the buckets of one sign; a tag is group and sign (4 where negative).
inline constexpr uint32_t kSketchGroups = 4;
inline constexpr uint32_t kSketchTags = 2 * kSketchGroups;
inline constexpr uint32_t kSketchRows = 2;

/// Holds how many buckets each sign has, and divides them into groups of nearly equal size.
struct SketchBuckets {
  std::array<uint32_t, 2> of_sign{};  ///< positive, negative

  uint32_t first(uint32_t tag) const {
    return (tag % kSketchGroups * of_sign[tag / kSketchGroups] + 3) / kSketchGroups;
  }
  uint32_t count(uint32_t tag) const {
    const uint32_t sign = tag / kSketchGroups;
    return ((tag % kSketchGroups + 1) * of_sign[sign] + 3) / kSketchGroups - first(tag);
  }
  uint32_t group(uint32_t sign, uint32_t bucket) const { return kSketchGroups * bucket / of_sign[sign]; }
};

/// Implements SketchML's MinMaxSketch, grouped: each tag has a table of two rows of hashed cells. A cell keeps the
/// smallest bucket that was inserted into it, and a query returns the larger of its two cells. The result is never more
/// than the inserted bucket, so that magnitudes shrink. Buckets are counted from the group's first, so that no
/// collision leaves the group. Rows have three cells for ten members: the default of the authors' program.
///
/// Source   [SketchML18, 3.3].
class MinMaxSketch {
 public:
  /// members   how many values each tag has; at most 2^32 in all.
  MinMaxSketch(uint64_t seed, const std::array<uint64_t, kSketchTags>& members);

  /// Of a tag.
  static uint64_t cells_of(uint64_t members);

  void insert(uint32_t tag, uint32_t index, uint8_t bucket) {
    for (uint32_t row = 0; row < kSketchRows; ++row) {
      uint8_t& cell = cells_[cell_of(tag, index, row)];
      cell = bucket < cell ? bucket : cell;
    }
  }
  uint8_t query(uint32_t tag, uint32_t index) const {
    const uint8_t one = cells_[cell_of(tag, index, 0)];
    const uint8_t two = cells_[cell_of(tag, index, 1)];
    return one > two ? one : two;
  }
  /// Sets cells without an inserted value to 0; no query reads them.
  void clear_unused_cells();

  std::span<uint8_t> table(uint32_t tag) {
    return std::span(cells_).subspan(tables_[tag].first, tables_[tag].hashes.bits * kSketchRows);
  }

 private:
  struct Table {
    uint64_t first = 0;
    BloomHashes hashes;
  };
  uint64_t cell_of(uint32_t tag, uint32_t index, uint32_t row) const {
    const Table& table = tables_[tag];
    return table.first + row * uint64_t{table.hashes.bits} + table.hashes.bit(index, row);
  }

  std::array<Table, kSketchTags> tables_;
  Buffer<uint8_t> cells_;
};

}  // namespace millrace
