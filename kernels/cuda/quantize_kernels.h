#pragma once

#include <cmath>

#include "kernels/cuda/queue/block_kernel.h"

/// The kernels of value codes. Arithmetic is that of kernels/quantize, operation by operation: same bits.
namespace millrace::cuda {

/// A QSGD bucket, as QsgdBucket of kernels/quantize.
struct QsgdLevels {
  float scale;
  float unit;
  float per_unit;
  uint32_t top;

  /// Where scale / levels is below the smallest normal f32, all of it is 0.
  MILLRACE_DEVICE static QsgdLevels of_scale(float scale, uint32_t bits) {
    const uint32_t top = (1u << (bits - 1)) - 1;
    const float unit = scale / static_cast<float>(top);
    if (unit < kSmallestNormal) return {0, 0, 0, top};
    return {scale, unit, 1 / unit, top};
  }

  /// Returns a number whose highest byte is the level, or one more than the top level. The value in units has 24 bits
  /// of fraction here, rounded up. The sum carries where the random word's 24 bits are below them.
  MILLRACE_DEVICE uint32_t raised(float value, uint32_t word) const {
    const float exact = __builtin_fabsf(value) * per_unit;
    return rounded_up(exact * 0x1p24F) - (word >> 8) + 0xFFFFFFu;
  }

  MILLRACE_DEVICE uint32_t code(float value, uint32_t word) const {
    const uint32_t up = raised(value, word) >> 24;
    const uint32_t level = up < top ? up : top;
    return level != 0 ? level | (bits_of(value) >> 31) * (top + 1) : 0;
  }

  MILLRACE_DEVICE float value_of(uint32_t code) const {
    const uint32_t level = code & top;
    const float magnitude = level == top ? scale : static_cast<float>(static_cast<int32_t>(level)) * unit;
    return (code & (top + 1)) != 0 ? -magnitude : magnitude;
  }
};

/// Values a bucket of QsgdWarps.
inline constexpr uint32_t kWarpBucket = 512;

/// QSGD of `kBits` bits and 512 values a bucket: a warp a bucket, which reads its values once.
///
/// REQUIRES values at a multiple of 16 bytes, out of 4, words.first of 4 words.
template <uint32_t kBits, bool kDecodes>
struct QsgdWarps {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  static constexpr uint32_t kBlocksAtOnce = 6;
  static constexpr uint32_t kBucket = kWarpBucket;
  static constexpr uint32_t kBucketsOfBlock = kThreads / kWarp;
  static constexpr uint32_t kBlockEntries = kBucket * kBucketsOfBlock;
  static constexpr uint32_t kRow = 128;
  static constexpr uint32_t kRowCount = kBucket / kRow;
  static constexpr uint32_t kLaneBytes = kBits / 2;
  static constexpr uint32_t kRecordBytes = sizeof(float) + kBucket * kBits / 8;
  const float* values;
  uint64_t count;
  WordSource words;
  uint8_t* out;
  float* decoded;  ///< kDecodes: the decoded values
  uint32_t* non_finite;

  struct Rows {
    Float4 at[kRowCount];
  };

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    auto rows = block.template own<Rows>();
    auto largest = block.template own<uint32_t>();
    block.step([&](auto t) { largest[t] = load(block, bucket_of(block, t) * kBucket, t.lane(), rows[t]); });
    const auto key = block.warp_max([&](auto t) { return largest[t]; });
    block.step([&](auto t) {
      const uint64_t bucket = bucket_of(block, t);
      const uint64_t first = bucket * kBucket;
      if (first >= count) return;
      if (key[t] >= kKeyInfinity) *non_finite = 1;
      QsgdLevels levels = QsgdLevels::of_scale(float_of(key[t]), kBits);
      levels.top = (1u << (kBits - 1)) - 1;  // a constant
      uint8_t* const record = out + bucket * kRecordBytes;
      if (t.lane() == 0) block.template store_bytes<4>(record, bits_of(levels.scale));
      uint8_t* const codes = record + sizeof(float) + t.lane() * kLaneBytes;
      if (first + kBucket > count) {
        encode_last(levels, first, t.lane(), codes);
        return;
      }
      MILLRACE_UNROLL
      for (uint32_t j = 0; j < kRowCount; ++j) {
        encode(block, levels, first + j * kRow + t.lane() * 4, rows[t].at[j], codes + j * kWarp * kLaneBytes);
      }
    });
  }

  template <class Block, class Thread>
  MILLRACE_DEVICE static uint64_t bucket_of(Block& block, Thread t) {
    return uint64_t{block.index()} * kBucketsOfBlock + t.warp();
  }

  /// Returns the largest key of a lane's values. Only those of a whole bucket stay in `rows`.
  template <class Block>
  MILLRACE_DEVICE uint32_t load(Block& block, uint64_t first, uint32_t lane, Rows& rows) const {
    float largest = 0;
    if (first + kBucket > count) {
      for (uint64_t i = first + lane; i < count; i += kWarp) largest = larger_magnitude(largest, values[i]);
      return key_of(largest);
    }
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kRowCount; ++j) rows.at[j] = block.load4(values + first + lane * 4 + j * kRow);
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kRowCount; ++j) {
      MILLRACE_UNROLL
      for (uint32_t c = 0; c < 4; ++c) largest = larger_magnitude(largest, rows.at[j].at[c]);
    }
    return key_of(largest);
  }

  /// The codes of four values, a byte each.
  MILLRACE_DEVICE static uint32_t codes_of(const QsgdLevels& levels, const Float4& four, const Words4& random) {
    uint32_t raised[4];
    uint32_t signs[4];
    MILLRACE_UNROLL
    for (uint32_t c = 0; c < 4; ++c) {
      raised[c] = levels.raised(four.at[c], random.at[c]);
      signs[c] = bits_of(four.at[c]);
    }
    const uint32_t found = top_bytes(raised);
    const uint32_t levels4 = found - (found >> (kBits - 1) & 0x01010101u);  // no more than the top level
    const uint32_t not_zero = (levels4 + 0x7F7F7F7Fu) & 0x80808080u;
    return levels4 | (top_bytes(signs) & not_zero) >> (8 - kBits);
  }

  /// Four codes of a byte each in 4 kBits bits.
  MILLRACE_DEVICE static uint32_t packed(uint32_t codes) {
    if constexpr (kBits == 8) return codes;
    const uint32_t pairs = codes | codes >> (8 - kBits);
    if constexpr (kBits == 4) return (pairs & 0xFFu) | (pairs >> 8 & 0xFF00u);
    return (pairs | pairs >> 12) & 0xFFu;
  }

  template <class Block>
  MILLRACE_DEVICE void encode(Block& block, const QsgdLevels& levels, uint64_t first, const Float4& four,
                              uint8_t* at) const {
    const uint32_t codes = codes_of(levels, four, words.words4(first));
    block.template store_bytes<kLaneBytes>(at, packed(codes));
    if constexpr (kDecodes) {
      Float4 meant;
      MILLRACE_UNROLL
      for (uint32_t c = 0; c < 4; ++c) meant.at[c] = levels.value_of(codes >> (8 * c) & 0xFFu);
      block.stream4(decoded + first, meant);
    }
  }

  /// The last bucket of an array, which is not whole: `codes` is the lane's place in its first row.
  MILLRACE_DEVICE void encode_last(const QsgdLevels& levels, uint64_t first, uint32_t lane, uint8_t* codes) const {
    for (uint64_t at = first + lane * 4; at < count; at += kRow, codes += kWarp * kLaneBytes) {
      const auto left = static_cast<uint32_t>(count - at < 4 ? count - at : 4);
      Float4 four{};
      for (uint32_t c = 0; c < left; ++c) four.at[c] = values[at + c];
      const uint32_t found = codes_of(levels, four, words.words4(at));
      const uint32_t bits = packed(found);
      for (uint32_t byte = 0; byte < (left * kBits + 7) / 8; ++byte) {
        codes[byte] = static_cast<uint8_t>(bits >> (8 * byte));
      }
      for (uint32_t c = 0; c < left && kDecodes; ++c) decoded[at + c] = levels.value_of(found >> (8 * c) & 0xFFu);
    }
  }
};

/// The largest key of a bucket, for all threads of a block. Uses kThreads / 32 words of shared memory from `word` on.
template <class Block, uint32_t kThreads>
MILLRACE_DEVICE uint32_t max_of_block(Block& block, const float* values, uint64_t count, uint32_t word) {
  auto shared = block.template shared<uint32_t>(word);
  auto own = block.template own<uint32_t>();
  block.step([&](auto t) {
    uint32_t largest = 0;
    for (uint64_t i = t.rank; i < count; i += kThreads) {
      const uint32_t key = key_of(values[i]);
      largest = key > largest ? key : largest;
    }
    own[t] = largest;
  });
  const auto of_warp = block.warp_max([&](auto t) { return own[t]; });
  block.phase([&](auto t) {
    if (t.lane() == 0) shared.store(t, t.warp(), of_warp[t]);
  });
  uint32_t largest = 0;
  for (uint32_t warp = 0; warp < kThreads / kWarp; ++warp) {
    const uint32_t key = shared.uniform(warp);
    largest = key > largest ? key : largest;
  }
  return largest;
}

/// Threads of a block that codes a bucket, and the eight sums of f64 that the host adds in.
inline constexpr uint32_t kCodeThreads = 128;
inline constexpr uint32_t kLanes = 8;
inline constexpr uint32_t kMaxWords = kCodeThreads / kWarp;

/// QSGD of 2 to 8 bits and any bucket size.
struct QsgdFormat {
  using Bucket = QsgdLevels;
  static constexpr uint32_t kGroup = 8;  ///< values that fill whole bytes
  static constexpr uint32_t kHeadBytes = 4;
  uint32_t bits;
  uint32_t is_l2;

  MILLRACE_DEVICE uint32_t group_bytes(uint32_t values) const { return (values * bits + 7) / 8; }

  template <class Block>
  MILLRACE_DEVICE Bucket bucket(Block& block, const float* values, uint64_t count, uint32_t largest) const {
    if (is_l2 == 0) return QsgdLevels::of_scale(float_of(largest), bits);
    auto sums = block.template shared<double>(kMaxWords);
    block.phase([&](auto t) {
      if (t.rank >= kLanes) return;
      double sum = 0;
      for (uint64_t i = t.rank; i < count; i += kLanes) {
        const double value = values[i];
        sum += value * value;
      }
      sums.store(t, t.rank, sum);
    });
    double sum = 0;
    for (uint32_t lane = 0; lane < kLanes; ++lane) sum += sums.uniform(lane);
    const double norm = std::sqrt(sum);
    constexpr double kLargest = 0x1.FFFFFEp127;
    return QsgdLevels::of_scale(static_cast<float>(norm < kLargest ? norm : kLargest), bits);
  }
  MILLRACE_DEVICE void put_head(const Bucket& bucket, uint8_t* at) const { put_u32(bits_of(bucket.scale), at); }
  MILLRACE_DEVICE uint32_t code(const Bucket& bucket, float value, uint32_t word) const {
    return bucket.code(value, word);
  }
  MILLRACE_DEVICE float value_of(const Bucket& bucket, uint32_t code) const { return bucket.value_of(code); }
  MILLRACE_DEVICE uint64_t append(uint64_t group, uint32_t place, uint32_t code) const {
    return group | uint64_t{code} << (place * bits);
  }

  MILLRACE_DEVICE static void put_u32(uint32_t bits, uint8_t* at) {
    for (uint32_t byte = 0; byte < 4; ++byte) at[byte] = static_cast<uint8_t>(bits >> (8 * byte));
  }
};

/// Ternary values, five a byte in base 3, as codec `terngrad`.
struct TernaryFormat {
  using Bucket = QsgdLevels;
  static constexpr uint32_t kGroup = 5;
  static constexpr uint32_t kHeadBytes = 4;

  MILLRACE_DEVICE uint32_t group_bytes(uint32_t) const { return 1; }
  template <class Block>
  MILLRACE_DEVICE Bucket bucket(Block&, const float*, uint64_t, uint32_t largest) const {
    return QsgdLevels::of_scale(float_of(largest), 2);
  }
  MILLRACE_DEVICE void put_head(const Bucket& bucket, uint8_t* at) const {
    QsgdFormat::put_u32(bits_of(bucket.scale), at);
  }
  MILLRACE_DEVICE uint32_t code(const Bucket& bucket, float value, uint32_t word) const {
    return bucket.code(value, word);
  }
  MILLRACE_DEVICE float value_of(const Bucket& bucket, uint32_t code) const { return bucket.value_of(code); }
  /// Codes 0, 1 and 3 are digits 0, 1 and 2, the first one lowest.
  MILLRACE_DEVICE uint64_t append(uint64_t group, uint32_t place, uint32_t code) const {
    const uint32_t powers[kGroup] = {1, 3, 9, 27, 81};
    return group + (code - (code >> 1)) * powers[place];
  }
};

/// Sums of magnitudes by sign, as SignSums of kernels/quantize.
struct SumsBySign {
  double positive = 0;
  double negative = 0;
  uint64_t positives = 0;
  uint64_t negatives = 0;

  MILLRACE_DEVICE void add(float value) {
    if (value > 0) positive += double{value}, ++positives;
    if (value < 0) negative -= double{value}, ++negatives;
  }
  MILLRACE_DEVICE void add(const SumsBySign& more) {
    positive += more.positive;
    negative += more.negative;
    positives += more.positives;
    negatives += more.negatives;
  }
  MILLRACE_DEVICE static float mean(double sum, uint64_t count, float largest) {
    const auto mean = static_cast<float>(sum / static_cast<double>(count));
    return mean < largest ? mean : largest;
  }
};

/// A bit a value and two means a bucket, as codec `onebit`.
struct OneBitFormat {
  struct Bucket {
    float positive;
    float negative;
  };
  static constexpr uint32_t kGroup = 8;
  static constexpr uint32_t kHeadBytes = 8;

  MILLRACE_DEVICE uint32_t group_bytes(uint32_t) const { return 1; }
  template <class Block>
  MILLRACE_DEVICE Bucket bucket(Block& block, const float* values, uint64_t count, uint32_t largest) const {
    auto lanes = block.template shared<SumsBySign>(kMaxWords);
    block.phase([&](auto t) {
      if (t.rank >= kLanes) return;
      SumsBySign sums;
      for (uint64_t i = t.rank; i < count; i += kLanes) sums.add(values[i]);
      lanes.store(t, t.rank, sums);
    });
    SumsBySign sums;
    for (uint32_t lane = 0; lane < kLanes; ++lane) sums.add(lanes.uniform(lane));
    Bucket means{0, 0};
    const uint64_t others = count - sums.negatives;
    const float most = float_of(largest);
    if (others > 0) means.positive = SumsBySign::mean(sums.positive, others, most);
    if (sums.negatives > 0) means.negative = SumsBySign::mean(sums.negative, sums.negatives, most);
    return means;
  }
  MILLRACE_DEVICE void put_head(const Bucket& bucket, uint8_t* at) const {
    QsgdFormat::put_u32(bits_of(bucket.positive), at);
    QsgdFormat::put_u32(bits_of(bucket.negative), at + 4);
  }
  MILLRACE_DEVICE uint32_t code(const Bucket&, float value, uint32_t) const { return value < 0 ? 1 : 0; }
  MILLRACE_DEVICE float value_of(const Bucket& bucket, uint32_t code) const {
    return code != 0 ? -bucket.negative : bucket.positive;
  }
  MILLRACE_DEVICE uint64_t append(uint64_t group, uint32_t place, uint32_t code) const {
    return group | uint64_t{code} << place;
  }
};

/// Codes an array in buckets: a block a bucket, which reads its values twice.
template <class Format>
struct CodeBuckets {
  static constexpr uint32_t kThreads = kCodeThreads;
  static constexpr uint32_t kSharedWords = kMaxWords + kLanes * sizeof(SumsBySign) / sizeof(uint32_t);
  Format format;
  const float* values;
  uint64_t count;
  uint64_t bucket_size;
  WordSource words;
  uint8_t* out;
  uint64_t bucket_bytes;
  float* decoded;  ///< null: not wanted
  uint32_t* non_finite;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    const uint64_t first = block.index() * bucket_size;
    const uint64_t size = count - first < bucket_size ? count - first : bucket_size;
    const uint32_t largest = max_of_block<Block, kThreads>(block, values + first, size, 0);
    const auto bucket = format.bucket(block, values + first, size, largest);
    uint8_t* const record = out + block.index() * bucket_bytes;
    block.step([&](auto t) {
      if (t.rank == 0) {
        format.put_head(bucket, record);
        if (largest >= kKeyInfinity) *non_finite = 1;
      }
      uint8_t* const codes = record + Format::kHeadBytes;
      const uint32_t bytes = format.group_bytes(Format::kGroup);
      for (uint64_t group = t.rank; group * Format::kGroup < size; group += kThreads) {
        const uint64_t at = group * Format::kGroup;
        const auto taken = static_cast<uint32_t>(size - at < Format::kGroup ? size - at : Format::kGroup);
        encode(bucket, first + at, taken, codes + group * bytes);
      }
    });
  }

  MILLRACE_DEVICE void encode(const typename Format::Bucket& bucket, uint64_t first, uint32_t taken,
                              uint8_t* at) const {
    uint64_t group = 0;
    Words4 random{};
    for (uint32_t place = 0; place < taken; ++place) {
      const uint64_t word = words.first + first + place;
      if (place == 0 || word % 4 == 0) random = philox(words.keys, word / 4);
      const uint32_t code = format.code(bucket, values[first + place], random.at[word % 4]);
      group = format.append(group, place, code);
      if (decoded != nullptr) decoded[first + place] = format.value_of(bucket, code);
    }
    const uint32_t bytes = format.group_bytes(taken);
    for (uint32_t byte = 0; byte < bytes; ++byte) at[byte] = static_cast<uint8_t>(group >> (8 * byte));
  }
};

/// Sums by sign of a whole array. One block: eight threads add, in the order of the host. The others read ahead.
struct SumSigns {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kChunk = 4096;
  static constexpr uint32_t kSumWords = sizeof(SumsBySign) / sizeof(uint32_t);
  static constexpr uint32_t kSharedWords = kLanes * kSumWords + kChunk;
  const float* values;
  uint64_t count;
  SumsBySign* result;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    auto sums = block.template own<SumsBySign>();
    auto chunk = block.template shared<float>(kLanes * kSumWords);
    for (uint64_t first = 0; first < count; first += kChunk) {
      const auto size = static_cast<uint32_t>(count - first < kChunk ? count - first : kChunk);
      block.phase([&](auto t) {
        for (uint32_t i = t.rank; i < size; i += kThreads) chunk.store(t, i, values[first + i]);
      });
      block.phase([&](auto t) {
        if (t.rank >= kLanes) return;
        SumsBySign own = sums[t];
        for (uint32_t i = t.rank; i < size; i += kLanes) own.add(chunk.load(t, i));
        sums[t] = own;
      });
    }
    auto lanes = block.template shared<SumsBySign>(0);
    block.phase([&](auto t) {
      if (t.rank < kLanes) lanes.store(t, t.rank, sums[t]);
    });
    block.step([&](auto t) {
      if (t.rank != 0) return;
      SumsBySign all;
      for (uint32_t lane = 0; lane < kLanes; ++lane) all.add(lanes.load(t, lane));
      *result = all;
    });
  }
};

/// A bit a value, 1 where it is below 0, and its mean: as sign_round() of kernels/quantize.
struct RoundSigns {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  const float* values;
  uint64_t count;
  float positive;
  float negative;
  uint8_t* out;    ///< null: not wanted
  float* decoded;  ///< null: not wanted

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      const uint64_t group = uint64_t{block.index()} * kThreads + t.rank;
      if (group * 8 >= count) return;
      uint32_t bits = 0;
      for (uint32_t place = 0; place < 8 && group * 8 + place < count; ++place) {
        const bool is_negative = values[group * 8 + place] < 0;
        bits |= (is_negative ? 1u : 0u) << place;
        if (decoded != nullptr) decoded[group * 8 + place] = is_negative ? negative : positive;
      }
      if (out != nullptr) out[group] = static_cast<uint8_t>(bits);
    });
  }
};

/// bf16, rounded at random, as bf16_round() of kernels/quantize.
struct Bf16Format {
  MILLRACE_DEVICE uint32_t round(float value, uint32_t word) const { return (bits_of(value) + (word >> 16)) >> 16; }
  MILLRACE_DEVICE float value_of(uint32_t code) const { return float_of(code << 16); }
};

/// f16 of value * 2^-exponent, rounded at random, as f16_round() of kernels/quantize.
struct F16Format {
  float down;  ///< 2^-exponent
  float up;    ///< 2^exponent

  MILLRACE_DEVICE uint32_t round(float value, uint32_t word) const {
    const float magnitude = float_of(key_of(value)) * down;
    uint32_t code;
    if (magnitude >= 0x1p-14F) {
      code = ((bits_of(magnitude) + (word >> 19)) >> 13) - ((127u - 15u) << 10);
    } else {
      const float exact = magnitude * 0x1p24F;
      const auto floor = static_cast<int32_t>(exact < 1024.0F ? exact : 1024.0F);
      const float fraction = exact - static_cast<float>(floor);
      const float uniform = static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24F;
      code = static_cast<uint32_t>(floor) + (uniform < fraction ? 1u : 0u);
    }
    return code | (bits_of(value) >> 16 & 0x8000u);
  }
  MILLRACE_DEVICE float value_of(uint32_t code) const {
    const uint32_t rest = code & 0x7FFFu;
    const float normal = float_of((rest << 13) + ((127u - 15u) << 23));
    const float counted = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24F;
    return float_of(bits_of((rest > 1023 ? normal : counted) * up) | (code & 0x8000u) << 16);
  }
};

/// Rounds an array to 16 bits a value.
template <class Format>
struct RoundHalves {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  Format format;
  const float* values;
  uint64_t count;
  WordSource words;
  uint16_t* out;
  float* decoded;       ///< null: not wanted
  uint32_t is_aligned;  ///< 1: arrays are at multiples of 16 bytes, and words.first of 4

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      const uint64_t first = (uint64_t{block.index()} * kThreads + t.rank) * 4;
      if (is_aligned != 0 && first + 4 <= count) {
        encode_four(block, first);
        return;
      }
      Words4 random{};
      for (uint64_t i = first; i < count && i < first + 4; ++i) {
        const uint64_t word = words.first + i;
        if (i == first || word % 4 == 0) random = philox(words.keys, word / 4);
        const uint32_t code = format.round(values[i], random.at[word % 4]);
        out[i] = static_cast<uint16_t>(code);
        if (decoded != nullptr) decoded[i] = format.value_of(code);
      }
    });
  }

  template <class Block>
  MILLRACE_DEVICE void encode_four(Block& block, uint64_t first) const {
    const Float4 four = block.load4(values + first);
    const Words4 random = words.words4(first);
    Float4 meant;
    uint32_t codes[4];
    MILLRACE_UNROLL
    for (uint32_t c = 0; c < 4; ++c) {
      codes[c] = format.round(four.at[c], random.at[c]);
      meant.at[c] = format.value_of(codes[c]);
    }
    block.store_halves(out + first, codes[0] | codes[1] << 16, codes[2] | codes[3] << 16);
    if (decoded != nullptr) block.stream4(decoded + first, meant);
  }
};

}  // namespace millrace::cuda
