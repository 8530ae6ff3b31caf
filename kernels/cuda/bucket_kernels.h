#pragma once

#include "kernels/cuda/quantize_kernels.h"
#include "kernels/cuda/queue/block_kernel.h"

namespace millrace::cuda {

/// Counts of a bucket selection, for the host.
struct BucketState {
  uint64_t selected = 0;
  uint32_t non_finite = 0;
  uint32_t reserved = 0;
};

/// Adds a gradient to a residual and selects the k largest of every bucket of the sum. Codes these with QSGD, whose
/// scale is the largest of the bucket, and keeps the rest. Reads each array once and writes one. A block a bucket.
///
/// At least k entries reach the k-th largest of the threads' maxima, and few more do. These are ranked by comparing
/// each with each. Where more than kListed reach it (ties), bisection finds the cut itself.
///
/// REQUIRES bucket_size <= kBucketMax, k <= kThreads.
struct BucketTopK {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kBlocksAtOnce = 4;
  static constexpr uint32_t kRow = kThreads * 4;
  static constexpr uint32_t kRowCount = 4;
  static constexpr uint32_t kBucketMax = kRow * kRowCount;
  static constexpr uint32_t kListed = kThreads;
  /// Words: bits and indices of those listed, codes of those selected, how many a warp selects, the largest key.
  static constexpr uint32_t kIndices = kListed;
  static constexpr uint32_t kCodes = 2 * kListed;
  static constexpr uint32_t kWarpCounts = 3 * kListed;
  static constexpr uint32_t kLargest = kWarpCounts + kThreads / kWarp;
  static constexpr uint32_t kSharedWords = kLargest + 1;
  static constexpr uint32_t kNotSelected = kListed;

  const float* residual;
  const float* gradient;  ///< null: nothing to add
  float* kept;            ///< the new residual, may be `residual`; null: not wanted
  uint64_t count;
  uint32_t bucket_size;
  uint32_t k;
  uint32_t bits;        ///< of a code, 2 to 8; 0: values are sent as they are
  uint32_t is_aligned;  ///< 1: all arrays, and buckets, are at multiples of 16 bytes
  WordSource words;
  uint32_t* positions;  ///< [buckets * k]
  float* values;        ///< [buckets * k], as selected; null: not wanted
  uint32_t* counts;     ///< [buckets]
  uint8_t* codes;       ///< [buckets] records; bits 0: null
  uint32_t record_bytes;
  BucketState* state;

  struct Rows {
    Float4 at[kRowCount];
  };
  /// The selected entries: those with a larger key, and those with this key up to an index.
  struct Bound {
    uint32_t key;
    uint32_t last_index;
    MILLRACE_DEVICE bool reached(uint32_t key_of_entry, uint32_t index) const {
      return key_of_entry > key || (key_of_entry == key && index <= last_index);
    }
  };

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    auto rows = block.template own<Rows>();
    auto largest = block.template own<uint32_t>();
    block.step([&](auto t) { largest[t] = load(block, t.rank, rows[t]); });
    const uint32_t least = bound_of_maxima(block, largest);
    uint32_t listed = list(block, rows, [=](uint32_t key, uint32_t) { return key >= least; });
    if (listed > kListed) {
      const Bound bound = exact_bound(block, rows);
      listed = list(block, rows, [=](uint32_t key, uint32_t index) { return bound.reached(key, index); });
    }
    auto place = block.template own<uint32_t>();
    rank(block, listed, place);
    send(block, place, listed < k ? listed : k);
  }

  MILLRACE_DEVICE uint64_t first_of(uint32_t bucket) const { return uint64_t{bucket} * bucket_size; }
  MILLRACE_DEVICE static uint32_t index_of(uint32_t rank, uint32_t row, uint32_t c) {
    return row * kRow + rank * 4 + c;
  }

  /// Reads a thread's entries, and writes their sums. Entries behind the end are 0. Returns their largest key.
  template <class Block>
  MILLRACE_DEVICE uint32_t load(Block& block, uint32_t rank, Rows& rows) const {
    const uint64_t first = first_of(block.index());
    const auto size = static_cast<uint32_t>(count - first < bucket_size ? count - first : bucket_size);
    Rows added;
    MILLRACE_UNROLL
    for (uint32_t row = 0; row < kRowCount; ++row) {
      rows.at[row] = load_row(block, residual, first, index_of(rank, row, 0), size);
      added.at[row] = load_row(block, gradient, first, index_of(rank, row, 0), size);
    }
    uint32_t largest = 0;
    MILLRACE_UNROLL
    for (uint32_t row = 0; row < kRowCount; ++row) {
      const uint32_t index = index_of(rank, row, 0);
      MILLRACE_UNROLL
      for (uint32_t c = 0; c < 4; ++c) {
        if (gradient != nullptr) rows.at[row].at[c] += added.at[row].at[c];
        const uint32_t key = key_of(rows.at[row].at[c]);
        largest = key > largest ? key : largest;
      }
      if (kept == nullptr) continue;
      if (is_aligned != 0 && index + 4 <= size) {
        // Some of it is written again: it stays in the cache.
        block.store4(kept + first + index, rows.at[row]);
      } else {
        for (uint32_t c = 0; c < 4 && index + c < size; ++c) kept[first + index + c] = rows.at[row].at[c];
      }
    }
    if (largest >= kKeyInfinity) state->non_finite = 1;
    return largest;
  }

  template <class Block>
  MILLRACE_DEVICE Float4 load_row(Block& block, const float* from, uint64_t first, uint32_t index,
                                  uint32_t size) const {
    if (from == nullptr) return Float4{};
    if (is_aligned != 0 && index + 4 <= size) return block.load4(from + first + index);
    Float4 four{};
    for (uint32_t c = 0; c < 4 && index + c < size; ++c) four.at[c] = from[first + index + c];
    return four;
  }

  /// At least k entries reach the k-th largest of the threads' maxima, cut to 16 bits; 1 where fewer threads have one.
  template <class Block, class Own>
  MILLRACE_DEVICE uint32_t bound_of_maxima(Block& block, const Own& largest) const {
    uint32_t key = 0;
    for (uint32_t bit = 1u << 30; bit >= 1u << 15; bit >>= 1) {
      if (block.count([&](auto t) { return largest[t] >= (key | bit); }) >= k) key |= bit;
    }
    return key != 0 ? key : 1;
  }

  template <class Block, class Own, class Test>
  MILLRACE_DEVICE static uint32_t count_entries(Block& block, const Own& rows, const Test& test) {
    auto counts = block.template own<uint32_t>();
    block.step([&](auto t) {
      uint32_t counted = 0;
      MILLRACE_UNROLL
      for (uint32_t row = 0; row < kRowCount; ++row) {
        MILLRACE_UNROLL
        for (uint32_t c = 0; c < 4; ++c) {
          counted += test(key_of(rows[t].at[row].at[c]), index_of(t.rank, row, c)) ? 1 : 0;
        }
      }
      counts[t] = counted;
    });
    return block.scan(counts);
  }

  /// The cut of the k largest, by bisection of keys, then of indices. REQUIRES more than k entries that are not 0.
  template <class Block, class Own>
  MILLRACE_DEVICE Bound exact_bound(Block& block, const Own& rows) const {
    uint32_t key = 0;
    for (uint32_t bit = 1u << 30; bit != 0; bit >>= 1) {
      const uint32_t least = key | bit;
      if (count_entries(block, rows, [=](uint32_t of, uint32_t) { return of >= least; }) >= k) key = least;
    }
    const uint32_t ties = k - count_entries(block, rows, [=](uint32_t of, uint32_t) { return of > key; });
    uint32_t last = 0;
    for (uint32_t bit = kBucketMax; bit != 0; bit >>= 1) {
      const uint32_t end = last | bit;
      if (count_entries(block, rows, [=](uint32_t of, uint32_t i) { return of == key && i < end; }) < ties) last = end;
    }
    return {key, last};
  }

  /// Lists the entries that a test of key and index accepts, by index. Returns how many there are; over kListed: none
  /// is written.
  template <class Block, class Own, class Test>
  MILLRACE_DEVICE uint32_t list(Block& block, const Own& rows, const Test& test) const {
    auto shared = block.template shared<uint32_t>(0);
    auto before = block.template own<uint64_t>();  // 16 bits a row
    block.step([&](auto t) {
      uint64_t counted = 0;
      MILLRACE_UNROLL
      for (uint32_t row = 0; row < kRowCount; ++row) {
        uint32_t in_row = 0;
        MILLRACE_UNROLL
        for (uint32_t c = 0; c < 4; ++c) {
          in_row += test(key_of(rows[t].at[row].at[c]), index_of(t.rank, row, c)) ? 1 : 0;
        }
        counted |= uint64_t{in_row} << (16 * row);
      }
      before[t] = counted;
    });
    const uint64_t totals = block.scan(before);
    uint32_t listed = 0;
    for (uint32_t row = 0; row < kRowCount; ++row) listed += of_row(totals, row);
    if (listed > kListed) return listed;
    block.phase([&](auto t) {
      if (t.rank == 0) shared.store(t, kLargest, 0);
      uint32_t row_begin = 0;
      MILLRACE_UNROLL
      for (uint32_t row = 0; row < kRowCount; ++row) {
        uint32_t to = row_begin + of_row(before[t], row);
        MILLRACE_UNROLL
        for (uint32_t c = 0; c < 4; ++c) {
          const float value = rows[t].at[row].at[c];
          if (!test(key_of(value), index_of(t.rank, row, c))) continue;
          shared.store(t, to, bits_of(value));
          shared.store(t, kIndices + to, index_of(t.rank, row, c));
          ++to;
        }
        row_begin += of_row(totals, row);
      }
    });
    return listed;
  }

  MILLRACE_DEVICE static uint32_t of_row(uint64_t packed, uint32_t row) {
    return static_cast<uint32_t>(packed >> (16 * row)) & 0xFFFFu;
  }

  /// Finds the places of the k largest of the listed, by index; kNotSelected: none. Ties: the lower index is larger.
  template <class Block, class Own>
  MILLRACE_DEVICE void rank(Block& block, uint32_t listed, Own& place) const {
    auto shared = block.template shared<uint32_t>(0);
    auto chosen = block.template own<uint32_t>();
    block.step([&](auto t) {
      if (t.rank >= listed) return;
      const uint32_t key = shared.load(t, t.rank) & 0x7FFFFFFFu;
      uint32_t larger = 0;
      for (uint32_t other = 0; other < listed; ++other) {
        const uint32_t its_key = shared.load(t, other) & 0x7FFFFFFFu;
        larger += its_key > key || (its_key == key && other < t.rank) ? 1 : 0;
      }
      chosen[t] = larger < k ? 1 : 0;
      if (larger == 0) shared.store(t, kLargest, key);
    });
    const auto of_warp = block.ballot([&](auto t) { return chosen[t] != 0; });
    block.phase([&](auto t) {
      if (t.lane() == 0) shared.store(t, kWarpCounts + t.warp(), bit_count(of_warp[t]));
    });
    block.step([&](auto t) {
      uint32_t before = bit_count(of_warp[t] & lanes_below(t.lane()));
      for (uint32_t warp = 0; warp < t.warp(); ++warp) before += shared.load(t, kWarpCounts + warp);
      place[t] = chosen[t] != 0 ? before : kNotSelected;
    });
  }

  /// Writes positions, values, codes, and the error that is kept of the selected.
  template <class Block, class Own>
  MILLRACE_DEVICE void send(Block& block, const Own& places, uint32_t taken) const {
    auto shared = block.template shared<uint32_t>(0);
    const uint32_t bucket = block.index();
    const QsgdLevels levels = QsgdLevels::of_scale(float_of(shared.uniform(kLargest)), bits < 2 ? 2 : bits);
    block.phase([&](auto t) {
      const uint32_t place = places[t];
      if (place == kNotSelected) return;
      const float value = float_of(shared.load(t, t.rank));
      const uint64_t at = uint64_t{bucket} * k + place;
      const uint64_t position = first_of(bucket) + shared.load(t, kIndices + t.rank);
      float sent = value;
      if (bits != 0) {
        const uint32_t code = levels.code(value, words.word(at));
        shared.store(t, kCodes + place, code);
        sent = levels.value_of(code);
      }
      positions[at] = static_cast<uint32_t>(position);
      if (values != nullptr) values[at] = value;
      if (kept != nullptr) kept[position] = value - sent;
    });
    block.step([&](auto t) {
      if (t.rank == 0) {
        counts[bucket] = taken;
        block.add_global(&state->selected, uint64_t{taken});
      }
      if (bits != 0) put_code(t, shared, levels.scale, taken, codes + uint64_t{record_bytes} * bucket);
    });
  }

  /// Writes the scale, then the codes, low bits first: a thread a byte.
  template <class Thread, class Shared>
  MILLRACE_DEVICE void put_code(Thread t, const Shared& shared, float scale, uint32_t taken, uint8_t* record) const {
    for (uint32_t byte = t.rank; byte < record_bytes; byte += kThreads) {
      if (byte < sizeof(float)) {
        record[byte] = static_cast<uint8_t>(bits_of(scale) >> (8 * byte));
        continue;
      }
      const uint32_t begin = 8 * (byte - static_cast<uint32_t>(sizeof(float)));
      uint32_t result = 0;
      for (uint32_t place = begin / bits; place < taken && place * bits < begin + 8; ++place) {
        const uint32_t code = shared.load(t, kCodes + place);
        result |= place * bits >= begin ? code << (place * bits - begin) : code >> (begin - place * bits);
      }
      record[byte] = static_cast<uint8_t>(result);
    }
  }
};

/// Where the selected of each bucket begin, of all. One block.
struct ScanCounts {
  static constexpr uint32_t kThreads = 1024;
  static constexpr uint32_t kSharedWords = 0;
  uint32_t buckets;
  const uint32_t* counts;
  uint64_t* first;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    const uint32_t each = (buckets + kThreads - 1) / kThreads;
    auto before = block.template own<uint64_t>();
    block.step([&](auto t) {
      for (uint32_t i = t.rank * each; i < (t.rank + 1) * each && i < buckets; ++i) before[t] += counts[i];
    });
    block.scan(before);
    block.step([&](auto t) {
      uint64_t sum = before[t];
      for (uint32_t i = t.rank * each; i < (t.rank + 1) * each && i < buckets; ++i) {
        first[i] = sum;
        sum += counts[i];
      }
    });
  }
};

/// Moves the selected of each bucket to where those of the buckets before it end. A block a bucket.
struct CompactBuckets {
  static constexpr uint32_t kThreads = 64;
  static constexpr uint32_t kSharedWords = 0;
  uint32_t k;
  const uint32_t* counts;
  const uint64_t* first;
  const uint32_t* positions;
  const float* values;  ///< null: not wanted
  uint32_t* positions_out;
  float* values_out;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    const uint32_t count = counts[block.index()];
    const uint64_t from = uint64_t{block.index()} * k;
    const uint64_t to = first[block.index()];
    block.step([&](auto t) {
      for (uint32_t i = t.rank; i < count; i += kThreads) {
        positions_out[to + i] = positions[from + i];
        if (values != nullptr) values_out[to + i] = values[from + i];
      }
    });
  }
};

}  // namespace millrace::cuda
