#include "worker/bench/rounds/serve_switch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/base/words.h"
#include "worker/config/option_text.h"

namespace millrace::bench {
namespace {

constexpr double kServeSwitchErrorMax = 1e-3;  ///< 16 bits for values up to 8: 2e-4 of a typical entry
constexpr double kServeSwitchSizeOff =
    0.25;  ///< of k: boundary bins of the histogram are an eighth of a power of two wide
constexpr double kServeSwitchWellOver = 1.2;       ///< of the k-th largest magnitude
constexpr double kServeSwitchMissingShare = 0.01;  ///< of those: entries for which a window had no room

}  // namespace

Result<Grid> grid_of(std::string_view text) { return worker::grid_from_text(text); }

Result<std::optional<SwitchCodec>> switch_codec_of(std::string_view text) {
  if (text == "auto") return std::optional<SwitchCodec>();
  const auto codecs = worker::switch_codecs_from_text(text);
  if (!codecs) return std::unexpected(codecs.error());
  return SwitchCodec{static_cast<SwitchIndex>(codecs->index), static_cast<SwitchValue>(codecs->value)};
}

Status check_switch_texts(std::string_view grid, std::string_view codec) {
  if (const auto read = grid_of(grid); !read) return std::unexpected(read.error());
  if (const auto read = switch_codec_of(codec); !read) return std::unexpected(read.error());
  return {};
}

uint32_t grid_block(std::string_view grid) {
  uint32_t indices = 0;
  (void)assign_number(grid.substr(0, grid.find(':')), indices);
  return indices;
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
