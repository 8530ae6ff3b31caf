#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "protocol/datagram/window/window_code.h"

/// The value codecs of a window's fragment; internal to window_code.cc.
namespace millrace::protocol {

/// Values that share a unit in QSGD.
inline constexpr uint32_t kLevelBucket = 64;
/// The largest units: multiplied by the lowest level of the code's bits, the product is still an i32.
inline constexpr uint32_t kUnit8Max = (1u << 24) - 1;
inline constexpr uint32_t kUnit4Max = (1u << 28) - 1;

constexpr size_t level_buckets(size_t count) { return (count + kLevelBucket - 1) / kLevelBucket; }

/// Returns the bytes of `count` values; nothing: no such codec. It is inline so that the searches of fit_X make no
/// calls.
constexpr std::optional<size_t> window_value_bytes(WindowValueCodec codec, size_t count) {
  switch (codec) {
    case WindowValueCodec::kFixed16: return 2 * count;
    case WindowValueCodec::kFixed32: return 4 * count;
    case WindowValueCodec::kQsgd8: return count + sizeof(uint32_t) * level_buckets(count);
    case WindowValueCodec::kQsgd4: return (count + 1) / 2 + sizeof(uint32_t) * level_buckets(count);
    case WindowValueCodec::kNone: return 0;
  }
  return std::nullopt;
}

/// Writes values.size() values into `out` [window_value_bytes] and their decoded values into `decoded`, which may be
/// `values`.
///
/// first_word  the number of the first value's random word.
/// REQUIRES a known codec.
void put_window_values(const WindowCodecs& codecs, std::span<const int32_t> values, uint64_t first_word,
                       std::span<uint8_t> out, std::span<int32_t> decoded);

/// Marks value `at` of `count` in `bytes`, which put_window_values() wrote, as a hole. The mark is the lowest number of
/// its code, which no value is coded as.
/// REQUIRES a codec other than kNone.
void put_hole(WindowValueCodec codec, size_t count, size_t at, std::span<uint8_t> bytes);

/// Drops the entries that put_hole() marked from decoded entries; returns how many are left.
size_t drop_holes(WindowValueCodec codec, ByteSpan bytes, std::span<uint16_t> indices, std::span<int32_t> values);

/// Reads out.size() values from hostile bytes [window_value_bytes]. False: a unit out of bounds.
bool read_window_values(WindowValueCodec codec, ByteSpan bytes, std::span<int32_t> out);

}  // namespace millrace::protocol
