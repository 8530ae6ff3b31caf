#include "worker/cli/bench/serve_input.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/random.h"

namespace millrace::cli {

Stream<float> serve_input(uint64_t n, uint64_t k, uint64_t seed, uint32_t worker, uint32_t round) {
  RandomSequence random(random_key(seed, worker, round));
  // Order statistics of k uniforms as scaled sums of exponentials, spread over n - k places and pushed apart by their rank:
  // sorted and distinct in one pass.
  std::vector<double> sums(k);
  double total = 0;
  for (auto& sum : sums) {
    total -= std::log(1.0 - random.next_unit());
    sum = total;
  }
  total -= std::log(1.0 - random.next_unit());
  Stream<float> stream = Stream<float>::empty(n);
  stream.indices.resize(k);
  stream.values.resize(k);
  const double places = static_cast<double>(n - k) + 1.0;
  for (uint64_t rank = 0; rank < k; ++rank) {
    const auto place = std::min<uint64_t>(static_cast<uint64_t>(sums[rank] / total * places), n - k);
    stream.indices[rank] = static_cast<uint32_t>(place + rank);
    stream.values[rank] = static_cast<float>(random.next_normal());
  }
  return stream;
}

ServeOracle serve_oracle(uint64_t n, uint64_t k, uint64_t seed, uint32_t workers, uint32_t round) {
  std::map<uint32_t, float> sum;
  for (uint32_t worker = 0; worker < workers; ++worker) {
    const auto input = serve_input(n, k, seed, worker, round);
    for (size_t at = 0; at < input.indices.size(); ++at) sum[input.indices[at]] += input.values[at];
  }
  ServeOracle oracle{Stream<float>::empty(n), 0};
  std::vector<float> magnitudes;
  for (const auto& [index, value] : sum) {
    oracle.sum.indices.push_back(index);
    oracle.sum.values.push_back(value);
    magnitudes.push_back(std::fabs(value));
  }
  if (k > 0 && k <= magnitudes.size()) {
    std::nth_element(magnitudes.begin(), magnitudes.begin() + static_cast<ptrdiff_t>(k - 1), magnitudes.end(),
                     std::greater<>());
    oracle.kth_magnitude = magnitudes[k - 1];
  }
  return oracle;
}

ServeVerdict judge_update(const ServeOracle& oracle, const StreamView<float>& update, uint64_t k, ServeValues values,
                          double error_max) {
  constexpr double kBand = 0.02;
  ServeVerdict verdict;
  const auto count = static_cast<double>(update.indices.size());
  if (update.dense || std::fabs(count - static_cast<double>(k)) > kBand * static_cast<double>(k)) {
    verdict.reason =
        "the update has " + std::to_string(update.count()) + " entries where " + std::to_string(k) + " are asked for";
    return verdict;
  }
  double error = 0;
  double norm = 0;
  uint64_t carried_large = 0;
  uint64_t large = 0;
  size_t at = 0;
  const float high = oracle.kth_magnitude * static_cast<float>(1 + kBand);
  const float low = oracle.kth_magnitude * static_cast<float>(1 - kBand);
  for (size_t entry = 0; entry < oracle.sum.indices.size(); ++entry) {
    const float expected = oracle.sum.values[entry];
    large += std::fabs(expected) > high ? 1 : 0;
    if (at >= update.indices.size() || update.indices[at] != oracle.sum.indices[entry]) continue;
    const float value = update.values[at++];
    if (values == ServeValues::kExact && (value != expected || std::fabs(expected) < low)) {
      verdict.reason = "index " + std::to_string(oracle.sum.indices[entry]) + " carries " + std::to_string(value) +
                       ", the sum is " + std::to_string(expected) + ", the k-th magnitude " +
                       std::to_string(oracle.kth_magnitude);
      return verdict;
    }
    carried_large += std::fabs(expected) > high ? 1 : 0;
    error += std::pow(static_cast<double>(value) - expected, 2);
    norm += std::pow(static_cast<double>(expected), 2);
  }
  verdict.relative_error = norm > 0 ? std::sqrt(error / norm) : 0;
  if (at != update.indices.size()) {
    verdict.reason = "index " + std::to_string(update.indices[at]) + " of the update was pushed by nobody";
  } else if (values == ServeValues::kExact && carried_large != large) {
    verdict.reason = std::to_string(large - carried_large) + " entries over the threshold are missing";
  } else if (verdict.relative_error > error_max) {
    verdict.reason = "relative error " + std::to_string(verdict.relative_error) + " over " + std::to_string(error_max);
  } else {
    verdict.agrees = true;
  }
  return verdict;
}

}  // namespace millrace::cli
