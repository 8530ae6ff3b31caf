#include "protocol/datagram/window/window_value_codecs.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/packet/window_values.h"

namespace millrace::protocol {
namespace {

constexpr int16_t kShortHole = std::numeric_limits<int16_t>::min();
constexpr int32_t kIntHole = std::numeric_limits<int32_t>::min();
constexpr uint8_t kLevel8Hole = 0x80;
constexpr uint8_t kLevel4Hole = 0x8;

/// The parameters of a codec of levels.
struct Levels {
  uint32_t highest;
  uint32_t unit_max;
};
constexpr Levels kLevels8{127, kUnit8Max};
constexpr Levels kLevels4{7, kUnit4Max};

uint32_t magnitude(int32_t value) {
  return value < 0 ? uint32_t{0} - static_cast<uint32_t>(value) : static_cast<uint32_t>(value);
}

void put_ints(std::span<const int32_t> values, uint8_t* out, int32_t* decoded) {
  for (size_t j = 0; j < values.size(); ++j) {
    const int32_t clamped = std::max(values[j], kIntHole + 1);
    std::memcpy(out + 4 * j, &clamped, sizeof(clamped));
    decoded[j] = clamped;
  }
}

/// Returns the smallest unit with which `highest` units reach the largest magnitude; 1 at least.
uint32_t unit_of(std::span<const int32_t> values, const Levels& levels) {
  uint32_t largest = 0;
  for (const int32_t value : values) largest = std::max(largest, magnitude(value));
  const uint32_t unit = largest / levels.highest + (largest % levels.highest != 0 ? 1 : 0);
  return std::clamp(unit, uint32_t{1}, levels.unit_max);
}

/// Rounds one bucket to levels, and writes their values. `draws`: a word a value, the chance of rounding up is rest /
/// unit (to 2^-32). Rounding to the nearest is the draw of one half.
void round_bucket(std::span<const int32_t> values, const Levels& levels, uint32_t unit, const uint32_t* draws,
                  int8_t* codes, int32_t* decoded) {
  for (size_t j = 0; j < values.size(); ++j) {
    const uint32_t size = magnitude(values[j]);
    const uint32_t rest = size % unit;
    uint32_t level = size / unit;
    level += (uint64_t{draws[j]} * unit >> 32) < rest ? 1 : 0;
    level = std::min(level, levels.highest);
    const auto code = static_cast<int32_t>(level);
    codes[j] = static_cast<int8_t>(values[j] < 0 ? -code : code);
    decoded[j] = codes[j] * static_cast<int32_t>(unit);
  }
}

/// Writes the units of all buckets, then the codes.
void put_levels(const WindowCodecs& codecs, std::span<const int32_t> values, uint64_t first_word, uint8_t* out,
                int32_t* decoded) {
  const bool narrow = codecs.value == WindowValueCodec::kQsgd4;
  const Levels& levels = narrow ? kLevels4 : kLevels8;
  std::array<uint32_t, kLevelBucket> draws;
  draws.fill(uint32_t{1} << 31);
  std::array<int8_t, kLevelBucket> codes;
  uint8_t* code_at = out + sizeof(uint32_t) * level_buckets(values.size());
  for (size_t begin = 0; begin < values.size(); begin += kLevelBucket) {
    const auto bucket = values.subspan(begin, std::min<size_t>(kLevelBucket, values.size() - begin));
    if (codecs.rounding == WindowRounding::kRandom) {
      random_fill(codecs.random, first_word + begin, std::span(draws).first(bucket.size()));
    }
    const uint32_t unit = unit_of(bucket, levels);
    round_bucket(bucket, levels, unit, draws.data(), codes.data(), decoded + begin);
    std::memcpy(out + begin / kLevelBucket * sizeof(unit), &unit, sizeof(unit));
    if (!narrow) {
      std::memcpy(code_at, codes.data(), bucket.size());
      code_at += bucket.size();
      continue;
    }
    for (size_t j = 0; j < bucket.size(); j += 2) {
      const int high = j + 1 < bucket.size() ? codes[j + 1] : 0;
      *code_at++ = static_cast<uint8_t>((codes[j] & 15) | (high & 15) << 4);
    }
  }
}

bool read_levels(WindowValueCodec codec, ByteSpan bytes, std::span<int32_t> out) {
  const bool narrow = codec == WindowValueCodec::kQsgd4;
  const size_t buckets = level_buckets(out.size());
  ByteSpan codes = bytes.subspan(sizeof(uint32_t) * buckets);
  for (size_t b = 0; b < buckets; ++b) {
    uint32_t unit;
    std::memcpy(&unit, bytes.data() + b * sizeof(unit), sizeof(unit));
    if (unit > (narrow ? kUnit4Max : kUnit8Max)) return false;
    const auto bucket = out.subspan(b * kLevelBucket, std::min<size_t>(kLevelBucket, out.size() - b * kLevelBucket));
    const size_t code_bytes = narrow ? (bucket.size() + 1) / 2 : bucket.size();
    if (narrow) {
      scale_levels4(codes.first(code_bytes), static_cast<int32_t>(unit), bucket);
    } else {
      scale_levels8(codes.first(code_bytes), static_cast<int32_t>(unit), bucket);
    }
    codes = codes.subspan(code_bytes);
  }
  return true;
}

/// Keeps the entries for which is_there(j) holds, in one pass without a branch.
template <typename IsThere>
size_t keep(std::span<uint16_t> indices, std::span<int32_t> values, IsThere is_there) {
  size_t kept = 0;
  for (size_t j = 0; j < indices.size(); ++j) {
    indices[kept] = indices[j];
    values[kept] = values[j];
    kept += is_there(j) ? 1 : 0;
  }
  return kept;
}

}  // namespace

void put_window_values(const WindowCodecs& codecs, std::span<const int32_t> values, uint64_t first_word,
                       std::span<uint8_t> out, std::span<int32_t> decoded) {
  MILLRACE_CHECK(window_value_bytes(codecs.value, values.size()) == out.size(), out.size(), values.size());
  MILLRACE_CHECK(decoded.size() >= values.size(), decoded.size(), values.size());
  if (values.empty()) return;
  switch (codecs.value) {
    case WindowValueCodec::kFixed16: narrow_shorts(values, out, decoded); break;
    case WindowValueCodec::kFixed32: put_ints(values, out.data(), decoded.data()); break;
    case WindowValueCodec::kQsgd8:
    case WindowValueCodec::kQsgd4: put_levels(codecs, values, first_word, out.data(), decoded.data()); break;
    case WindowValueCodec::kNone: std::fill_n(decoded.begin(), values.size(), 0); break;
  }
}

void put_hole(WindowValueCodec codec, size_t count, size_t at, std::span<uint8_t> bytes) {
  const size_t unit_bytes = sizeof(uint32_t) * level_buckets(count);
  switch (codec) {
    case WindowValueCodec::kFixed16: std::memcpy(bytes.data() + 2 * at, &kShortHole, sizeof(kShortHole)); break;
    case WindowValueCodec::kFixed32: std::memcpy(bytes.data() + 4 * at, &kIntHole, sizeof(kIntHole)); break;
    case WindowValueCodec::kQsgd8: bytes[unit_bytes + at] = kLevel8Hole; break;
    case WindowValueCodec::kQsgd4: {
      uint8_t& pair = bytes[unit_bytes + at / 2];
      const uint32_t from = at % 2 * 4;
      pair = static_cast<uint8_t>((pair & ~(15u << from)) | uint32_t{kLevel4Hole} << from);
      break;
    }
    case WindowValueCodec::kNone: MILLRACE_CHECK(codec != WindowValueCodec::kNone, at); break;
  }
}

size_t drop_holes(WindowValueCodec codec, ByteSpan bytes, std::span<uint16_t> indices, std::span<int32_t> values) {
  const ByteSpan codes = codec == WindowValueCodec::kQsgd8 || codec == WindowValueCodec::kQsgd4
                             ? bytes.subspan(sizeof(uint32_t) * level_buckets(values.size()))
                             : bytes;
  switch (codec) {
    case WindowValueCodec::kFixed16: return keep(indices, values, [&](size_t j) { return values[j] != kShortHole; });
    case WindowValueCodec::kFixed32: return keep(indices, values, [&](size_t j) { return values[j] != kIntHole; });
    case WindowValueCodec::kQsgd8: return keep(indices, values, [&](size_t j) { return codes[j] != kLevel8Hole; });
    case WindowValueCodec::kQsgd4:
      return keep(indices, values, [&](size_t j) { return (codes[j / 2] >> (j % 2 * 4) & 15) != kLevel4Hole; });
    case WindowValueCodec::kNone: break;
  }
  return indices.size();
}

bool read_window_values(WindowValueCodec codec, ByteSpan bytes, std::span<int32_t> out) {
  switch (codec) {
    case WindowValueCodec::kFixed16: widen_shorts(bytes, out); return true;
    case WindowValueCodec::kFixed32: std::memcpy(out.data(), bytes.data(), bytes.size()); return true;
    case WindowValueCodec::kQsgd8:
    case WindowValueCodec::kQsgd4: return read_levels(codec, bytes, out);
    case WindowValueCodec::kNone: std::fill(out.begin(), out.end(), 0); return true;
  }
  return false;
}

}  // namespace millrace::protocol
