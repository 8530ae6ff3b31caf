#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/base/result.h"
#include "kernels/codec/curve/piecewise_polynomial.h"
#include "kernels/cuda/polynomial_kernels.h"

/// Fits of codec fit_poly [DeepReduce21, 5] to points that lie where a queue's kernels run.
namespace millrace::cuda {

static_assert(kPowers == kCoefficients);

/// Holds a piece of a curve, and its polynomial.
template <class T>
struct PieceWithPowers {
  Piece piece;
  std::array<T, kCoefficients> powers{};
};
using FittedPiece = PieceWithPowers<double>;  ///< before it is rounded
using SentPiece = PieceWithPowers<float>;     ///< as it is sent

inline CurveRun run_of(const Piece& piece) {
  return {piece.begin, piece.length, 1.0 / static_cast<double>(piece.length)};
}

/// Finds the points at which one or two pieces would be cut. Waits for the queue; finds none where that fails.
template <class Queue>
Status find_boundaries(Queue& queue, const float* points, std::span<const Piece> pieces, std::span<Boundary> found) {
  FindFarPoints kernel{points, {}, nullptr};
  std::array<uint32_t, 3> first_block{};
  for (size_t i = 0; i < 2; ++i) {
    first_block[i + 1] = first_block[i];
    if (i >= pieces.size()) continue;
    const Piece& piece = pieces[i];
    const uint64_t places = piece.length < kCutFrom ? 0 : piece.length - kCutFrom + 1;
    kernel.ranges[i] = {piece.begin, piece.length, first_block[i]};
    first_block[i + 1] += static_cast<uint32_t>((places + FindFarPoints::kChunk - 1) / FindFarPoints::kChunk);
  }
  kernel.ranges[1].first_block = first_block[1];
  std::ranges::fill(found, Boundary{});
  if (first_block[2] == 0) return {};
  auto memory = queue.template allocate<FarPoint>(first_block[2]);
  kernel.found = memory.data();
  queue.launch(kernel, first_block[2]);
  std::vector<FarPoint> of_chunks(first_block[2]);
  queue.download(std::span(of_chunks), static_cast<const FarPoint*>(memory.data()));
  if (auto done = queue.finish(); !done) return done;
  for (size_t i = 0; i < pieces.size(); ++i) {
    FarPoint furthest{0, ~uint64_t{0}};
    for (uint32_t block = first_block[i]; block < first_block[i + 1]; ++block) {
      if (of_chunks[block].before(furthest)) furthest = of_chunks[block];
    }
    if (furthest.distance != 0) found[i] = {furthest.at, std::bit_cast<double>(furthest.distance)};
  }
  return {};
}

/// Fits polynomials to the pieces of a curve, as segment_curve() with piece_count() pieces and fit_polynomial() do: the
/// same bits.
///
/// points  [n] of one sign, finite, descending.
/// Returns the pieces in order; none for n = 0.
/// Cost    every cut reads the piece that it cuts, and waits for the queue. At the end six threads a piece add half of
///         its points, one after the other.
template <class Queue>
Result<std::vector<FittedPiece>> fit_pieces(Queue& queue, const float* points, uint64_t n) {
  if (n == 0) return std::vector<FittedPiece>();
  CurveEnds ends;
  if (n >= 3) {
    queue.download(std::span<float>(ends.first), points);
    queue.download(std::span<float>(ends.last), points + n - 2);
    if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  }
  Status searched;
  const auto search = [&](std::span<const Piece> some, std::span<Boundary> found) {
    if (searched) searched = find_boundaries(queue, points, some, found);
  };
  const std::vector<Piece> pieces = segment_curve_by(n, piece_count(ends, n), search);
  if (!searched) return std::unexpected(searched.error());
  std::vector<CurveRun> asked;
  for (const Piece& piece : pieces) asked.push_back(run_of(piece));
  auto on_device = queue.template allocate<CurveRun>(asked.size());
  auto memory = queue.template allocate<PieceMoments>(asked.size());
  queue.upload(on_device.data(), std::span<const CurveRun>(asked));
  queue.launch(SumMoments{points, on_device.data(), memory.data()}, asked.size());
  std::vector<PieceMoments> found(asked.size());
  queue.download(std::span(found), static_cast<const PieceMoments*>(memory.data()));
  if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  std::vector<FittedPiece> fitted;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Moments moments{.exponent = static_cast<int>(found[i].exponent)};
    std::ranges::copy(found[i].sums, moments.sums.begin());
    fitted.push_back({pieces[i], polynomial_of(moments, pieces[i].length)});
  }
  return fitted;
}

/// Computes the points that a receiver of the pieces decodes, as evaluate_polynomial() does: the same bits.
///
/// pieces  of a whole curve, in order; their powers are valid (coefficient_valid()).
/// fitted  [points of the curve]
template <class Queue>
Status evaluate_pieces(Queue& queue, std::span<const SentPiece> pieces, float* fitted) {
  std::vector<EvaluatePieces::Piece> asked;
  for (const SentPiece& sent : pieces) {
    asked.push_back({run_of(sent.piece), {}});
    std::ranges::copy(sent.powers, asked.back().powers);
  }
  if (asked.empty()) return {};
  auto on_device = queue.template allocate<EvaluatePieces::Piece>(asked.size());
  queue.upload(on_device.data(), std::span<const EvaluatePieces::Piece>(asked));
  const uint64_t points = asked.back().run.begin + asked.back().run.length;
  queue.launch(EvaluatePieces{on_device.data(), static_cast<uint32_t>(asked.size()), points, fitted},
               (points + EvaluatePieces::kThreads - 1) / EvaluatePieces::kThreads);
  return queue.finish();
}

}  // namespace millrace::cuda
