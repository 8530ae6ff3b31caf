// [DeepReduce21, 5], Fit-Poly: the sorted values as polynomials of degree 5, and the map back. The map puts every value
// at its place, so the error of the stream is that of the curve. The angles of its lemma 11, between vectors before and
// after a sort, play no part.
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/curve/curve_codec.h"
#include "kernels/codec/curve/piecewise_polynomial.h"

namespace millrace {
namespace {

struct PolynomialCode {
  static constexpr ValueCodecId kId{10};
  static constexpr std::string_view kName = "fit_poly";

  static constexpr uint64_t kPieceBytes = sizeof(uint32_t) + kCoefficients * sizeof(float);
  static uint64_t pieces_of(ByteSpan bytes) { return bytes[2] + (uint64_t{bytes[3]} << 8); }

  static bool sized(ByteSpan bytes, uint64_t count) {
    const uint64_t pieces = pieces_of(bytes);
    return bytes[1] == 0 && pieces >= 1 && bytes.size() == kFitHeaderBytes + pieces * kPieceBytes + map_bytes(count);
  }

  static bool fit(const SortedCurve& curve, ByteBuffer& out, std::span<float> fitted) {
    const std::span<const float> points(curve.points);
    const size_t start = out.size();
    ByteWriter writer(out);
    writer.put(FitMode::kFitted);
    writer.put(uint8_t{0});
    writer.put(uint16_t{0});
    uint16_t pieces = 0;
    const size_t negative_at = curve.positive + curve.zero;
    for (const auto& [begin, end] :
         {std::pair<size_t, size_t>{0, curve.positive}, {curve.positive, negative_at}, {negative_at, points.size()}}) {
      if (begin == end) continue;
      const std::span<const float> sign = points.subspan(begin, end - begin);
      for (const Piece& piece : segment_curve(sign, piece_count(sign))) {
        ++pieces;
        if (!append_piece(sign.subspan(piece.begin, piece.length), writer,
                          fitted.subspan(begin + piece.begin, piece.length))) {
          return false;
        }
      }
    }
    std::memcpy(out.data() + start + 2, &pieces, sizeof(pieces));
    return true;
  }

  static bool append_piece(std::span<const float> points, ByteWriter& writer, std::span<float> fitted) {
    const std::array<double, kCoefficients> coefficients = fit_polynomial(points);
    std::array<float, kCoefficients> rounded;
    for (size_t j = 0; j < kCoefficients; ++j) {
      if (!round_coefficient(coefficients[j], rounded[j])) return false;
    }
    writer.put(static_cast<uint32_t>(points.size()));
    writer.put(rounded);
    evaluate_polynomial(rounded, fitted);
    return true;
  }

  static const char* read(ByteSpan bytes, std::span<float> points) {
    ByteReader reader(bytes.subspan(kFitHeaderBytes));
    for (uint64_t left = pieces_of(bytes); left > 0; --left) {
      const auto length = *reader.get<uint32_t>();
      const auto coefficients = *reader.get<std::array<float, kCoefficients>>();
      if (length == 0 || length > points.size()) return "the pieces are not those of that many values";
      for (const float coefficient : coefficients) {
        if (!coefficient_valid(coefficient)) return "a coefficient that cannot be";
      }
      evaluate_polynomial(coefficients, points.first(length));
      points = points.subspan(length);
    }
    return points.empty() ? nullptr : "the pieces are not those of that many values";
  }
};

}  // namespace

const ValueCodec& fit_poly_value_codec() {
  static const FittedValueCodec<PolynomialCode> codec;
  return codec;
}

}  // namespace millrace
