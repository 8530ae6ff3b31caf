#pragma once

#include "kernels/cuda/queue/block_kernel.h"

/// The kernels of piecewise polynomials.
namespace millrace::cuda {

/// Coefficients of a polynomial: kCoefficients of kernels/codec/curve.
inline constexpr uint32_t kPowers = 6;

/// A run of a curve.
struct CurveRun {
  uint64_t begin;
  uint64_t length;
  double step;  ///< 1 / length
};

/// A point of a piece, and how far the curve is from its chord there: the bits of an f64 that is not negative.
struct FarPoint {
  uint64_t distance;
  uint64_t at;  ///< from the piece's begin

  /// Says whether a search prefers this point: the furthest, and of those the first.
  MILLRACE_DEVICE bool before(const FarPoint& other) const {
    return distance != other.distance ? distance > other.distance : at < other.at;
  }
};

/// Finds in each chunk of one or two pieces the point that is furthest from the piece's chord.
struct FindFarPoints {
  static constexpr uint64_t kChunk = uint64_t{1} << 14;
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = kThreads * sizeof(FarPoint) / sizeof(uint32_t);
  static constexpr uint64_t kMargin = kPowers;  ///< points of a piece on either side of a cut, at least

  struct Range {
    uint64_t begin;
    uint64_t length;
    uint32_t first_block;
  };
  const float* points;
  Range ranges[2];
  FarPoint* found;  ///< [blocks]

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    const Range& range = block.index() < ranges[1].first_block ? ranges[0] : ranges[1];
    auto distances = block.template shared<uint64_t>(0);
    auto places = block.template shared<uint64_t>(2 * kThreads);
    auto furthest = block.template own<FarPoint>();
    block.phase([&](auto t) {
      furthest[t] = search(range, kMargin + (block.index() - range.first_block) * kChunk, t.rank);
      distances.store(t, t.rank, furthest[t].distance);
      places.store(t, t.rank, furthest[t].at);
    });
    for (uint32_t half = kThreads / 2; half > 0; half /= 2) {
      block.phase([&](auto t) {
        if (t.rank >= half) return;
        const FarPoint other{distances.load(t, t.rank + half), places.load(t, t.rank + half)};
        if (!other.before(furthest[t])) return;
        furthest[t] = other;
        distances.store(t, t.rank, other.distance);
        places.store(t, t.rank, other.at);
      });
    }
    block.step([&](auto t) {
      if (t.rank == 0) found[block.index()] = furthest[t];
    });
  }

  /// The furthest of a thread's points of the chunk.
  MILLRACE_DEVICE FarPoint search(const Range& range, uint64_t chunk_begin, uint32_t rank) const {
    const float* const piece = points + range.begin;
    const double first = static_cast<double>(piece[0]);
    const double slope = (static_cast<double>(piece[range.length - 1]) - first) / static_cast<double>(range.length - 1);
    const uint64_t past_last = range.length - kMargin + 1;
    const uint64_t end = chunk_begin + kChunk < past_last ? chunk_begin + kChunk : past_last;
    FarPoint furthest{0, ~uint64_t{0}};
    for (uint64_t i = chunk_begin + rank; i < end; i += kThreads) {
      const double chord = first + slope * static_cast<double>(i);
      const double distance = __builtin_fabs(chord - static_cast<double>(piece[i]));
      const FarPoint here{__builtin_bit_cast(uint64_t, distance), i};
      if (here.before(furthest)) furthest = here;
    }
    return furthest;
  }
};

/// Moments of a piece, as Moments of kernels/codec/curve.
struct PieceMoments {
  double sums[kPowers];
  int64_t exponent;
};

/// Sums the moments of descending pieces. A block has a piece. Six threads, each of a warp of its own, add one term
/// after the other in the host's order. All threads compute the next terms meanwhile.
struct SumMoments {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 2 * kPowers * kThreads * 2;
  static constexpr uint32_t kMantissaBits = 52;
  static constexpr int64_t kBias = 1023;
  const float* points;
  const CurveRun* pieces;
  PieceMoments* moments;  ///< [blocks]

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    const CurveRun piece = pieces[block.index()];
    const int64_t exponent = exponent_of(piece);
    const double scale = __builtin_bit_cast(double, static_cast<uint64_t>(kBias - exponent) << kMantissaBits);
    const uint64_t pairs = piece.length / 2;
    auto terms = block.template shared<double>(0);
    auto sum = block.template own<double>();
    for (uint64_t first = 0; first < pairs + kThreads; first += kThreads) {
      const uint32_t turn = static_cast<uint32_t>(first / kThreads % 2) * kPowers * kThreads;
      const uint32_t turn_before = kPowers * kThreads - turn;
      block.phase([&](auto t) {
        if (first + t.rank < pairs) write_terms(t, terms, turn, piece, scale, first + t.rank);
        if (t.lane() != 0 || t.warp() >= kPowers || first == 0) return;
        const uint64_t begin = first - kThreads;
        const uint32_t count = static_cast<uint32_t>(pairs - begin < kThreads ? pairs - begin : kThreads);
        double own = sum[t];
        for (uint32_t i = 0; i < count; ++i) own += terms.load(t, turn_before + t.warp() * kThreads + i);
        sum[t] = own;
      });
    }
    block.step([&](auto t) {
      if (t.lane() != 0 || t.warp() >= kPowers) return;
      double all = sum[t];
      if (t.warp() == 0 && piece.length % 2 == 1) all += point(piece, pairs) * scale;
      moments[block.index()].sums[t.warp()] = all;
      if (t.rank == 0) moments[block.index()].exponent = exponent;
    });
  }

  MILLRACE_DEVICE double point(const CurveRun& piece, uint64_t i) const {
    return static_cast<double>(points[piece.begin + i]);
  }

  /// The exponent of the largest magnitude, which one of the ends has. An f32 is a normal number as an f64.
  MILLRACE_DEVICE int64_t exponent_of(const CurveRun& piece) const {
    const double first = __builtin_fabs(point(piece, 0));
    const double last = __builtin_fabs(point(piece, piece.length - 1));
    const double largest = first > last ? first : last;
    if (largest == 0) return 0;
    return static_cast<int64_t>(__builtin_bit_cast(uint64_t, largest) >> kMantissaBits) - kBias;
  }

  /// The terms of a point and its mirror image, by the host's operations.
  template <class Thread, class Shared>
  MILLRACE_DEVICE void write_terms(Thread t, const Shared& terms, uint32_t turn, const CurveRun& piece, double scale,
                                   uint64_t i) const {
    const double at = static_cast<double>(piece.length - 1 - 2 * i) * piece.step;
    const double low = point(piece, i) * scale;
    const double high = point(piece, piece.length - 1 - i) * scale;
    const double square = at * at;
    const double even = high + low;
    const double odd = (high - low) * at;
    const double of_power[kPowers] = {
        even, odd, even * square, odd * square, even * square * square, odd * square * square};
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kPowers; ++j) terms.store(t, turn + j * kThreads + t.rank, of_power[j]);
  }
};

/// Computes the decoded points of pieces, as evaluate_polynomial() of kernels/codec/curve.
struct EvaluatePieces {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;

  struct Piece {
    CurveRun run;
    float powers[kPowers];
  };
  const Piece* pieces;  ///< in order, without a gap
  uint32_t count;
  uint64_t points;
  float* fitted;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      const uint64_t at = uint64_t{block.index()} * kThreads + t.rank;
      if (at < points) fitted[at] = value_at(piece_of(at), at);
    });
  }

  /// The last piece that begins at or before a point.
  MILLRACE_DEVICE const Piece& piece_of(uint64_t at) const {
    uint32_t low = 0;
    uint32_t high = count;
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (pieces[middle].run.begin <= at ? low : high) = middle;
    }
    return pieces[low];
  }

  MILLRACE_DEVICE static float value_at(const Piece& piece, uint64_t at) {
    double a[kPowers];
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kPowers; ++j) a[j] = static_cast<double>(piece.powers[j]);
    const int64_t i = static_cast<int64_t>(at - piece.run.begin);
    const double t = static_cast<double>(2 * i - (static_cast<int64_t>(piece.run.length) - 1)) * piece.run.step;
    const double u = t * t;
    const double even = (a[4] * u + a[2]) * u + a[0];
    const double odd = (a[5] * u + a[3]) * u + a[1];
    return static_cast<float>(even + t * odd);
  }
};

}  // namespace millrace::cuda
