#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/polynomial.h"
#include "tests/kernels/cuda/quantize_suite.h"

namespace millrace::cuda {

/// Returns a curve of one sign: the finite magnitudes of a pattern's values, descending; or their opposites.
inline std::vector<float> curve_of(testing::Pattern pattern, size_t n, bool negative) {
  std::vector<float> points = testing::values_of(pattern, n, n + 7);
  for (float& point : points) point = std::isfinite(point) ? std::abs(point) : 1.0F;
  std::ranges::sort(points, std::greater());
  if (!negative) return points;
  std::ranges::reverse(points);
  for (float& point : points) point = -point;
  return points;
}

inline constexpr size_t kCurveSizes[] = {
    1, 2, 3, 5, 6, 11, 12, 13, 64, 511, 512, 513, 514, 9001, 2 * FindFarPoints::kChunk + 13};

template <class Under>
class CudaPolynomial : public ::testing::Test {
 protected:
  using Queue = typename Under::Queue;

  void SetUp() override {
    if (const std::string why = Under::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  void expect_fit_as_host(std::span<const float> points) {
    const std::vector<Piece> wanted = segment_curve(points, piece_count(points));
    for (const auto& queue : Under::queues()) {
      const Array<Queue> array(*queue, points, 3);
      const auto fitted = fit_pieces(*queue, array.data, points.size());
      ASSERT_TRUE(fitted.has_value()) << fitted.error().message;
      ASSERT_EQ(fitted->size(), wanted.size());
      std::vector<SentPiece> sent;
      for (size_t i = 0; i < wanted.size(); ++i) {
        const FittedPiece& found = (*fitted)[i];
        ASSERT_EQ(found.piece.begin, wanted[i].begin);
        ASSERT_EQ(found.piece.length, wanted[i].length);
        const auto powers = fit_polynomial(points.subspan(wanted[i].begin, wanted[i].length));
        ASSERT_EQ(std::memcmp(found.powers.data(), powers.data(), sizeof(powers)), 0) << "piece " << i;
        sent.push_back({found.piece, {}});
        for (size_t j = 0; j < kCoefficients; ++j) {
          if (!round_coefficient(powers[j], sent[i].powers[j])) return;  // the codec sends no fit then
        }
      }
      expect_points_as_host(*queue, sent, points.size());
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  void expect_points_as_host(Queue& queue, const std::vector<SentPiece>& sent, size_t n) {
    std::vector<float> wanted(n);
    for (const SentPiece& piece : sent) {
      evaluate_polynomial(piece.powers, std::span(wanted).subspan(piece.piece.begin, piece.piece.length));
    }
    auto decoded = queue.template allocate<float>(n);
    const Status done = evaluate_pieces(queue, std::span<const SentPiece>(sent), decoded.data());
    ASSERT_TRUE(done.has_value()) << done.error().message;
    ASSERT_EQ(bits_of_values(downloaded(queue, decoded.data(), n)), bits_of_values(wanted));
  }
};

TYPED_TEST_SUITE(CudaPolynomial, QueuesUnderTest);

TYPED_TEST(CudaPolynomial, PiecesAndTheirFitsEqualTheHost) {
  for (const testing::Pattern pattern : testing::kPatterns) {
    for (const size_t n : kCurveSizes) {
      for (const bool negative : {false, true}) {
        SCOPED_TRACE(testing::name_of(pattern, n, 0) + (negative ? ", negative" : ""));
        this->expect_fit_as_host(curve_of(pattern, n, negative));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaPolynomial, ManyPiecesOfOneCurveEqualTheHost) {
  // A steep curve: the largest number of pieces.
  std::vector<float> points;
  for (size_t i = 0; i < 40'000; ++i) points.push_back(1.0F / (1.0F + 0.03F * static_cast<float>(i)));
  ASSERT_EQ(piece_count(points), 64u);
  this->expect_fit_as_host(points);
}

TYPED_TEST(CudaPolynomial, ExtremeMagnitudesEqualTheHost) {
  using Limits = std::numeric_limits<float>;
  for (const float scale : {Limits::denorm_min(), Limits::min(), 1.0F, Limits::max() / 1000}) {
    std::vector<float> points(1000);
    for (size_t i = 0; i < points.size(); ++i) points[i] = scale * static_cast<float>(1000 - i);
    SCOPED_TRACE(scale);
    this->expect_fit_as_host(points);
  }
}

TYPED_TEST(CudaPolynomial, NoPointsHaveNoPieces) {
  for (const auto& queue : TypeParam::queues()) {
    const auto fitted = fit_pieces(*queue, nullptr, 0);
    ASSERT_TRUE(fitted.has_value());
    EXPECT_TRUE(fitted->empty());
    EXPECT_TRUE(evaluate_pieces(*queue, {}, nullptr).has_value());
  }
}

}  // namespace millrace::cuda
