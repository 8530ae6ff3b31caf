// [DeepReduce21, 5], Fit-DExp. The paper names the model, y = a e^(bx) + c e^(dx), and not how it is fitted ("on
// TensorFlow, using tensor operations"). Here:
//
// - The curve is thinned to at most some hundred points, means over runs that grow with the distance from the large
//   end.
// - Starts: the rates of y = A SS + B S + C x + D, where they are real, and a few fixed pairs. S and SS are the first
//   and second integrals of y [Jacquelin09]. Given the rates, the amplitudes are linear least
//   squares.
// - From the best start Levenberg-Marquardt in (b, d), the amplitudes solved for each time. Only improvements are
//   taken, so a run that does not converge still ends with the best result so far.
// - Rates that fall together, or too few points for two, leave one exponential; one rate of 0 is a constant.
#include "kernels/codec/curve/double_exponential.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/base/check.h"

namespace millrace {
namespace {

/// e^x from sums and products alone, so that every machine fits the same; within 1e-14 of it for x in [-700, 700], 0
/// below.
double exponential(double x) {
  constexpr double kLog2 = 0.6931471805599453;
  constexpr std::array<double, 12> kInverseFactorials = {
      1.0,       1.0,        1.0 / 2,      1.0 / 6,       1.0 / 24,        1.0 / 120,
      1.0 / 720, 1.0 / 5040, 1.0 / 40'320, 1.0 / 362'880, 1.0 / 3'628'800, 1.0 / 39'916'800};
  if (x < -700) return 0;
  const auto power = static_cast<int64_t>(x * (1 / kLog2) + (x < 0 ? -0.5 : 0.5));
  const double r = x - static_cast<double>(power) * kLog2;
  double sum = kInverseFactorials.back();
  for (size_t k = kInverseFactorials.size() - 1; k-- > 0;) sum = sum * r + kInverseFactorials[k];
  return sum * std::bit_cast<double>(static_cast<uint64_t>(1023 + power) << 52);
}

/// A run of points of the curve.
struct Thinned {
  double x = 0;       // its middle, of [0, 1)
  double y = 0;       // its mean
  double weight = 0;  // how many
};

/// Magnitudes are divided by `unit`.
std::vector<Thinned> thin(std::span<const float> points, CurveStart start, double unit) {
  const double scale = 1 / unit;
  constexpr size_t kRunsPerLength = 24;  // a run is at most 1/24 of the way to it
  std::vector<Thinned> runs;
  const size_t n = points.size();
  for (size_t begin = 0; begin < n;) {
    const size_t end = std::min(n, begin + 1 + begin / kRunsPerLength);
    double sum = 0;
    for (size_t i = begin; i < end; ++i) {
      sum += std::abs(static_cast<double>(points[start == CurveStart::kFirst ? i : n - 1 - i])) * scale;
    }
    const auto weight = static_cast<double>(end - begin);
    runs.push_back({static_cast<double>(begin + end - 1) / 2 / static_cast<double>(n), sum / weight, weight});
    begin = end;
  }
  return runs;
}

/// Rates of the two exponentials over x in [0, 1), their amplitudes, and the weighted squared error.
struct Candidate {
  double b = 0;
  double d = 0;
  double a = 0;
  double c = 0;
  double error = std::numeric_limits<double>::infinity();
};

constexpr double kRateMin = -1e4;
constexpr double kRateMax = 30;

/// The amplitudes for these rates.
Candidate solve_amplitudes(std::span<const Thinned> runs, double b, double d) {
  Candidate candidate{std::clamp(b, kRateMin, kRateMax), std::clamp(d, kRateMin, kRateMax)};
  double ee = 0, ef = 0, ff = 0, ey = 0, fy = 0, yy = 0;
  for (const Thinned& run : runs) {
    const double e = exponential(candidate.b * run.x);
    const double f = exponential(candidate.d * run.x);
    ee += run.weight * e * e;
    ef += run.weight * e * f;
    ff += run.weight * f * f;
    ey += run.weight * e * run.y;
    fy += run.weight * f * run.y;
    yy += run.weight * run.y * run.y;
  }
  const double determinant = ee * ff - ef * ef;
  if (determinant > 1e-9 * ee * ff) {
    candidate.a = (ey * ff - fy * ef) / determinant;
    candidate.c = (fy * ee - ey * ef) / determinant;
  } else {
    candidate.a = ey / ee;
    candidate.d = 0;
  }
  candidate.error = yy - candidate.a * ey - candidate.c * fy;
  return candidate;
}

/// Solves a linear system; empty where it is singular.
template <size_t N>
std::optional<std::array<double, N>> solve(std::array<std::array<double, N + 1>, N> rows) {
  for (size_t k = 0; k < N; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < N; ++i) pivot = std::abs(rows[i][k]) > std::abs(rows[pivot][k]) ? i : pivot;
    std::swap(rows[k], rows[pivot]);
    if (!(std::abs(rows[k][k]) > 1e-13)) return std::nullopt;
    for (size_t i = 0; i < N; ++i) {
      if (i == k) continue;
      const double factor = rows[i][k] / rows[k][k];
      for (size_t j = k; j <= N; ++j) rows[i][j] -= factor * rows[k][j];
    }
  }
  std::array<double, N> solution;
  for (size_t k = 0; k < N; ++k) solution[k] = rows[k][N] / rows[k][k];
  return solution;
}

/// The rates of [Jacquelin09]: the roots of r^2 - B r - A.
std::optional<std::array<double, 2>> integral_rates(std::span<const Thinned> runs) {
  std::array<std::array<double, 5>, 4> rows{};
  double s = 0, ss = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i > 0) {
      const double width = runs[i].x - runs[i - 1].x;
      const double before = s;
      s += width * (runs[i].y + runs[i - 1].y) / 2;
      ss += width * (s + before) / 2;
    }
    const std::array<double, 5> terms = {ss, s, runs[i].x, 1, runs[i].y};
    for (size_t j = 0; j < 4; ++j) {
      for (size_t k = 0; k < 5; ++k) rows[j][k] += runs[i].weight * terms[j] * terms[k];
    }
  }
  const auto solution = solve<4>(rows);
  if (!solution) return std::nullopt;
  const double discriminant = (*solution)[1] * (*solution)[1] + 4 * (*solution)[0];
  if (!(discriminant >= 0)) return std::nullopt;
  const double root = std::sqrt(discriminant);
  return std::array{((*solution)[1] + root) / 2, ((*solution)[1] - root) / 2};
}

/// A step of Levenberg and Marquardt in the rates, the Jacobian at fixed amplitudes.
Candidate step(std::span<const Thinned> runs, const Candidate& from, double damping) {
  double pp = 0, pr = 0, rr = 0, pe = 0, re = 0;
  for (const Thinned& run : runs) {
    const double e = exponential(from.b * run.x);
    const double f = exponential(from.d * run.x);
    const double left = run.y - from.a * e - from.c * f;
    const double p = from.a * run.x * e;
    const double r = from.c * run.x * f;
    pp += run.weight * p * p;
    pr += run.weight * p * r;
    rr += run.weight * r * r;
    pe += run.weight * p * left;
    re += run.weight * r * left;
  }
  pp *= 1 + damping;
  rr *= 1 + damping;
  const double determinant = pp * rr - pr * pr;
  if (!(determinant > 0)) return from;
  return solve_amplitudes(runs, from.b + (pe * rr - re * pr) / determinant, from.d + (re * pp - pe * pr) / determinant);
}

Candidate best_fit(std::span<const Thinned> runs) {
  constexpr std::array<std::array<double, 2>, 6> kStarts = {
      {{0, -5}, {-1, -20}, {-0.3, -100}, {-3, -500}, {1, -3}, {4, -1}}};
  constexpr int kSteps = 24;
  Candidate best;
  const auto consider = [&](const Candidate& candidate) {
    const bool better = candidate.error < best.error;
    if (better) best = candidate;
    return better;
  };
  for (const auto& [b, d] : kStarts) consider(solve_amplitudes(runs, b, d));
  if (const auto rates = integral_rates(runs)) consider(solve_amplitudes(runs, (*rates)[0], (*rates)[1]));
  double damping = 0.1;
  for (int i = 0; i < kSteps; ++i) damping *= consider(step(runs, best, damping)) ? 0.2 : 4;
  return best;
}

}  // namespace

DoubleExponential fit_double_exponential(std::span<const float> points, CurveStart start) {
  MILLRACE_CHECK(!points.empty());
  const double largest = std::abs(static_cast<double>(start == CurveStart::kFirst ? points.front() : points.back()));
  if (largest == 0) return {};
  const double unit = std::ldexp(1.0, std::ilogb(largest));
  const Candidate best = best_fit(thin(points, start, unit));
  // A ratio that is nearly 0 is not: the next power is.
  const auto ratio = [n = static_cast<double>(points.size())](double rate) {
    return std::max(exponential(rate / n), 0x1p-200);
  };
  return {best.a * unit, best.c * unit, ratio(best.b), ratio(best.d)};
}

void evaluate_double_exponential(const DoubleExponential& fit, std::span<float> magnitudes) {
  constexpr double kPowerMin = 0x1p-100;
  constexpr auto kSmallest = static_cast<double>(std::numeric_limits<float>::min());
  constexpr auto kLargest = static_cast<double>(std::numeric_limits<float>::max());
  double q = 1;
  double s = 1;
  for (float& magnitude : magnitudes) {
    const double y = fit.a * q + fit.c * s;
    magnitude = static_cast<float>(y >= kSmallest ? std::min(y, kLargest) : 0);  // 0 where y is no number, too
    q *= fit.q;
    s *= fit.s;
    if (q < kPowerMin) q = 0;
    if (s < kPowerMin) s = 0;
  }
}

}  // namespace millrace
