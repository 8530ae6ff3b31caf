#include "worker/bench/rounds/serve_switch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "worker/config/option_table.h"

namespace millrace::bench {
namespace {

constexpr double kServeSwitchErrorMax = 1e-3;  ///< 16 bits for values up to 8: 2e-4 of a typical entry
constexpr double kServeSwitchSizeOff =
    0.25;  ///< of k: boundary bins of the histogram are an eighth of a power of two wide
constexpr double kServeSwitchWellOver = 1.2;       ///< of the k-th largest magnitude
constexpr double kServeSwitchMissingShare = 0.01;  ///< of those: entries for which a window had no room

}  // namespace

std::string switch_codec_text(const JobConfig& job) {
  worker::JobDraft draft = worker::draft_of(job);
  std::vector<worker::Option> options = worker::options_of(draft);
  return worker::option_named(options, "switch_codec").text();
}

ServeVerdict judge_switch_update(const ServeJob& job, uint32_t round, const StreamView& update) {
  const Stream sum = serve_sum(job, round);
  ServeVerdict verdict;
  double error = 0;
  double norm = 0;
  std::vector<bool> carried(sum.indices.size(), false);
  for (size_t i = 0; i < update.values.size(); ++i) {
    const auto at = std::ranges::lower_bound(sum.indices, update.indices[i]);
    if (at == sum.indices.end() || *at != update.indices[i]) {
      verdict.reason = "index " + std::to_string(update.indices[i]) + " is in no worker's contribution";
      return verdict;
    }
    const auto place = static_cast<size_t>(at - sum.indices.begin());
    carried[place] = true;
    const auto wanted = static_cast<double>(sum.values[place]);
    error += std::pow(static_cast<double>(update.values[i]) - wanted, 2);
    norm += wanted * wanted;
  }
  verdict.relative_error = norm > 0 ? std::sqrt(error / norm) : 0;
  if (verdict.relative_error > kServeSwitchErrorMax) {
    verdict.reason = "its entries are not the sums: a relative error of " + std::to_string(verdict.relative_error);
    return verdict;
  }
  const auto k = static_cast<size_t>(std::min<uint64_t>(job.k, sum.values.size()));
  const auto off = std::abs(static_cast<double>(update.values.size()) - static_cast<double>(k));
  if (round > 0 && off > kServeSwitchSizeOff * static_cast<double>(k)) {
    verdict.reason = std::to_string(update.values.size()) + " entries, and k is " + std::to_string(k);
    return verdict;
  }
  std::vector<float> magnitudes;
  for (const float value : sum.values) magnitudes.push_back(std::fabs(value));
  std::ranges::nth_element(magnitudes, magnitudes.begin() + static_cast<std::ptrdiff_t>(k) - 1, std::greater<>());
  const double least = kServeSwitchWellOver * static_cast<double>(magnitudes[k - 1]);
  size_t large = 0;
  size_t missing = 0;
  for (size_t i = 0; i < sum.values.size(); ++i) {
    if (static_cast<double>(std::fabs(sum.values[i])) < least) continue;
    ++large;
    missing += carried[i] ? 0 : 1;
  }
  verdict.agrees = static_cast<double>(missing) <= kServeSwitchMissingShare * static_cast<double>(large);
  if (!verdict.agrees) {
    verdict.reason = std::to_string(missing) + " of the " + std::to_string(large) + " largest entries are missing";
  }
  return verdict;
}

}  // namespace millrace::bench
