#include "kernels/select/tail_sums.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/select/draw.h"

namespace millrace {
namespace {

TailSums sums_of_chunk(std::span<const float> values, uint32_t cut, double) {
  return tail_sums_f32(values.data(), values.size(), cut);
}

TailSums sums_of_chunk(std::span<const double> values, uint64_t cut, double unit) {
  constexpr size_t kSumLanes = 16;
  std::array<TailSums, kSumLanes> lanes{};
  for (size_t i = 0; i < values.size(); ++i) {
    TailSums& lane = lanes[i % kSumLanes];
    if (magnitude_key(values[i]) >= cut) {
      ++lane.above;
      continue;
    }
    const double value = values[i] * unit;
    lane.sum += value;
    lane.magnitude += std::abs(value);
    lane.squares += value * value;
  }
  TailSums sums;
  for (const TailSums& lane : lanes) {
    sums.above += lane.above;
    sums.sum += lane.sum;
    sums.magnitude += lane.magnitude;
    sums.squares += lane.squares;
  }
  return sums;
}

}  // namespace

template <typename T>
TailSums tail_sums(std::span<const T> values, MagnitudeKey<T> cut, double unit) {
  std::vector<TailSums> parts((values.size() + kDrawChunk - 1) / kDrawChunk);
  const auto sum_chunk = [&](size_t chunk) {
    const size_t begin = chunk * kDrawChunk;
    parts[chunk] = sums_of_chunk(values.subspan(begin, std::min(kDrawChunk, values.size() - begin)), cut, unit);
  };
  for_chunks(parts.size(), sum_chunk);
  TailSums sums;
  for (const TailSums& part : parts) {
    sums.above += part.above;
    sums.sum += part.sum;
    sums.magnitude += part.magnitude;
    sums.squares += part.squares;
  }
  return sums;
}

template <>
double sum_unit<float>(uint32_t) {
  return 1;
}

template <>
double sum_unit<double>(uint64_t largest) {
  if (largest == 0 || largest >= kInfinityKey<double>) return 1;
  return std::ldexp(1.0, std::clamp(-std::ilogb(magnitude_of_key<double>(largest)), -1022, 1022));
}

template TailSums tail_sums<float>(std::span<const float>, uint32_t, double);
template TailSums tail_sums<double>(std::span<const double>, uint64_t, double);

}  // namespace millrace
