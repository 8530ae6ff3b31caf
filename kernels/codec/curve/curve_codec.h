#pragma once

#include <cmath>
#include <cstring>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/curve/sorted_curve.h"
#include "kernels/stream/stream.h"

namespace millrace {

// Shared parts of the codes of fitted curves [DeepReduce21, 5]. Both are biased: a value's point of the curve does not
// depend on chance.

/// Says, as the first byte of the code, whether it has a fit.
enum class FitMode : uint8_t { kExact = 0, kFitted = 1 };
inline constexpr uint64_t kFitHeaderBytes = 4;

/// Appends mode 0 and the uncoded values.
inline void append_unfitted(std::span<const float> values, ByteBuffer& out, std::span<float> decoded) {
  ByteWriter writer(out);
  writer.put(uint32_t{0});
  writer.put_array(values);
  if (!values.empty()) std::memmove(decoded.data(), values.data(), values.size_bytes());
}

/// Sorts the values, fits them, and appends the code. Appends the values unchanged where the fit is no shorter or no
/// contraction.
///
/// fit  fit(const SortedCurve&, ByteBuffer& out, std::span<float> fitted): appends all of the code but the map, and
///      writes its decoding. Returns false where the fit cannot be sent.
template <typename Fit>
Status encode_fitted(std::span<const float> values, ByteBuffer& out, std::span<float> decoded, const Fit& fit) {
  MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
  if (values.size() >> 32 != 0) return fail(ErrorCode::kLimitExceeded, "a curve has fewer than 2^32 values");
  const auto curve = sort_curve(values);
  if (!curve) return std::unexpected(curve.error());
  const size_t start = out.size();
  const uint64_t exact_bytes = kFitHeaderBytes + values.size_bytes();
  Buffer<float> fitted(values.size());
  if (!fit(*curve, out, std::span<float>(fitted)) || out.size() - start + map_bytes(values.size()) >= exact_bytes ||
      !is_contraction(curve_error(curve->points, fitted))) {
    out.resize(start);
    append_unfitted(values, out, decoded);
    return {};
  }
  append_map(curve->point_of, out);
  for (size_t i = 0; i < decoded.size(); ++i) decoded[i] = fitted[curve->point_of[i]];
  return {};
}

/// Implements a codec of fitted curves. Code has static members:
///   kId, kName.
///   bool sized(ByteSpan bytes, uint64_t count): the length of the code is that of `count` values.
///   bool fit(const SortedCurve&, ByteBuffer&, std::span<float> fitted): as above.
///   const char* read(ByteSpan bytes, std::span<float> points): the curve of a code that is sized, mode 1; nullptr: all
///   is well.
template <typename Code>
class FittedValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return Code::kId; }
  std::string_view name() const override { return Code::kName; }
  std::string_view paper() const override { return "[DeepReduce21, 5]"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec&) const override { return true; }
  uint64_t bytes_max(uint64_t count, const CodecSpec&) const override {
    return kFitHeaderBytes + count * sizeof(float);
  }
  Status check(ByteSpan bytes, uint64_t count) const override {
    if (sized(bytes, count)) return {};
    return malformed("the length is not that of the values");
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions&, ByteBuffer& out,
                std::span<float> decoded) const override {
    return encode_fitted(values, out, decoded, Code::fit);
  }
  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override { return decode_values(bytes, out); }

 private:
  static std::unexpected<Error> malformed(const char* what) {
    return fail(ErrorCode::kMalformed, std::string(Code::kName) + ": " + what);
  }

  static bool sized(ByteSpan bytes, uint64_t count) {
    if (bytes.size() < kFitHeaderBytes || count > kDimensionMax) return false;
    if (bytes[0] == static_cast<uint8_t>(FitMode::kFitted)) {
      return count < kDimensionMax && Code::sized(bytes, count);
    }
    const bool zeros = bytes[0] == 0 && bytes[1] == 0 && bytes[2] == 0 && bytes[3] == 0;
    return zeros && bytes.size() == kFitHeaderBytes + count * sizeof(float);
  }

  static Status decode_values(ByteSpan bytes, std::span<float> out) {
    if (!sized(bytes, out.size())) return malformed("the length is not that of the values");
    if (bytes[0] == static_cast<uint8_t>(FitMode::kExact)) {
      return copy_finite(bytes.data() + kFitHeaderBytes, out) ? Status{} : malformed("values that are not finite");
    }
    Buffer<float> points(out.size());
    if (const char* wrong = Code::read(bytes, std::span<float>(points)); wrong != nullptr) return malformed(wrong);
    const ByteSpan map = bytes.last(map_bytes(out.size()));
    return take_points(map, points, out) ? Status{} : malformed("the map has points that are none");
  }
};

}  // namespace millrace
