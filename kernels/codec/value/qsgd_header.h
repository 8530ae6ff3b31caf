#pragma once

#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/codec/codec.h"
#include "kernels/quantize/qsgd.h"

namespace millrace {

/// Holds the beginning of QSGD's codes: bits u8, scale u8, zero u16, bucket size u32.
struct QsgdHeader {
  static constexpr size_t kBytes = 8;
  uint32_t bits = 0;
  uint32_t bucket_size = 0;

  static std::optional<QsgdHeader> parse(ByteSpan bytes) {
    ByteReader reader(bytes);
    const auto bits = reader.get<uint8_t>();
    const auto scale = reader.get<uint8_t>();
    const auto zero = reader.get<uint16_t>();
    const auto bucket_size = reader.get<uint32_t>();
    if (!bits || !scale || !zero || !bucket_size) return std::nullopt;
    const bool known_scale =
        *scale == static_cast<uint8_t>(QsgdBucketScale::kL2) || *scale == static_cast<uint8_t>(QsgdBucketScale::kMax);
    if (*bits < kQsgdBitsMin || *bits > kQsgdBitsMax || !known_scale || *zero != 0) return std::nullopt;
    if (*bucket_size == 0 || *bucket_size > kBucketSizeMax) return std::nullopt;
    return QsgdHeader{*bits, *bucket_size};
  }

  static void put(const CodecSpec& spec, ByteBuffer& out) {
    ByteWriter writer(out);
    writer.put(static_cast<uint8_t>(spec.qsgd_bits));
    writer.put(static_cast<uint8_t>(scale_of(spec)));
    writer.put(uint16_t{0});
    writer.put(spec.bucket_size);
  }

  static QsgdBucketScale scale_of(const CodecSpec& spec) {
    return spec.qsgd_scale_max ? QsgdBucketScale::kMax : QsgdBucketScale::kL2;
  }
};

}  // namespace millrace
