#include "worker/cli/bench/select.h"

#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/select/select.h"
#include "kernels/select/top_k.h"
#include "worker/cli/bench/measure.h"

namespace millrace::cli {
namespace {

// Drifting data: x' = 0.95 x + noise, as a gradient's accumulator moves, while the noise's scale swings by a third up and
// down in 256 steps (at most 0.7 % a step).
constexpr double kKeep = 0.95;
constexpr double kSwing = 0.3;
constexpr double kSwingSteps = 256;
constexpr uint32_t kReusePeriod = 32;
constexpr uint32_t kReuseSteps = 2 * kReusePeriod + 4;

std::vector<float> gaussian(uint64_t n, uint64_t seed) {
  std::vector<float> values(n);
  RandomSequence random(random_key(seed));
  for (float& value : values) value = static_cast<float>(random.next_normal());
  return values;
}

double ms_since(TimeNs begin) {
  return static_cast<double>(monotonic_now_ns() - begin) / static_cast<double>(kNsPerMs);
}

// One timed read pass, then one timed run, over an array that an untimed pass has just walked.
struct Sample {
  double read_ms = 0;
  double ms = 0;
};

class Measured {
 public:
  template <typename Run>
  void add(const std::vector<float>& values, Run&& run) {
    float seen = max_magnitude<float>(values);
    const TimeNs read_begin = monotonic_now_ns();
    seen += max_magnitude<float>(values);
    const double read_ms = ms_since(read_begin);
    const TimeNs begin = monotonic_now_ns();
    run();
    const double ms = ms_since(begin);
    MILLRACE_CHECK(std::isfinite(seen), seen);
    samples_.push_back({read_ms, ms});
  }
  double ms() const {
    return median_of([](const Sample& s) { return s.ms; });
  }
  double read_ms() const {
    return median_of([](const Sample& s) { return s.read_ms; });
  }
  double ratio() const {
    return median_of([](const Sample& s) { return s.ms / s.read_ms; });
  }
  double ratio_mean() const {
    const double sum = std::accumulate(samples_.begin(), samples_.end(), 0.0,
                                       [](double so_far, const Sample& s) { return so_far + s.ms / s.read_ms; });
    return sum / static_cast<double>(samples_.size());
  }

 private:
  template <typename Of>
  double median_of(Of of) const {
    std::vector<double> all;
    for (const Sample& sample : samples_) all.push_back(of(sample));
    return median(std::move(all));
  }
  std::vector<Sample> samples_;
};

nlohmann::json row(const std::string& algorithm, const Measured& measured, double selected_over_k) {
  return {{"algorithm", algorithm},
          {"ms", measured.ms()},
          {"ratio_to_read_pass", measured.ratio()},
          {"selected_over_k", selected_over_k}};
}

std::unique_ptr<Selector<float>> selector_for(const SelectionSpec& spec, uint64_t n) {
  auto made = make_selector<float>(spec, n);
  MILLRACE_CHECK(made.has_value(), made.error().message);
  return std::move(*made);
}

void select_all(Selector<float>& selector, const std::vector<float>& values, IndexBuffer& positions) {
  const StreamView<float> view{values.size(), true, {}, values};
  const Status done = selector.select(view, {}, positions);
  MILLRACE_CHECK(done.has_value(), done.error().message);
}

void bench_stationary(const SelectBenchOptions& options, const std::vector<float>& values, nlohmann::json& rows) {
  const uint64_t k = k_of({.density = options.density}, options.n);
  const double threshold = std::max<double>(top_k_threshold<float>(values, k).value_or(0), 1e-30);
  const std::pair<const char*, SelectionSpec> cases[] = {
      {"exact", {.selection = Selection::kTopK, .density = options.density}},
      {"threshold", {.selection = Selection::kThreshold, .threshold = threshold}},
      {"bucket_topk", {.selection = Selection::kBucketTopK, .density = options.density}}};
  Measured read_pass;
  std::vector<nlohmann::json> selections;
  for (const auto& [name, spec] : cases) {
    auto selector = selector_for(spec, options.n);
    Measured measured;
    IndexBuffer positions;
    for (uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
      measured.add(values, [&] { select_all(*selector, values, positions); });
    }
    selections.push_back(row(name, measured, static_cast<double>(positions.size()) / static_cast<double>(k)));
  }
  for (uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
    read_pass.add(values, [&] { max_magnitude<float>(values); });
  }
  rows.push_back(row("read_pass", read_pass, 0));
  rows.back()["selected_over_k"] = nullptr;
  for (nlohmann::json& selection : selections) rows.push_back(std::move(selection));
}

// Fresh normals every step would take longer than all that is measured: the noise is one array of them, read from another
// offset every step.
void drift(uint32_t step, const std::vector<float>& noise, std::vector<float>& values) {
  const double phase = 2 * std::numbers::pi * step / kSwingSteps;
  const float scale = static_cast<float>(std::sqrt(1 - kKeep * kKeep) * std::exp(kSwing * std::sin(phase)));
  const size_t n = values.size();
  const size_t offset = random_words(RandomKey::from(step), 0)[0] % n;
  for (size_t i = 0; i < n; ++i) {
    const size_t at = i + offset < n ? i + offset : i + offset - n;
    values[i] = static_cast<float>(kKeep) * values[i] + scale * noise[at];
  }
}

void bench_reuse(const SelectBenchOptions& options, std::vector<float> values, nlohmann::json& rows) {
  const uint64_t k = k_of({.density = options.density}, options.n);
  const std::vector<float> noise = gaussian(options.n, options.seed + 1);
  auto selector = selector_for(
      {.selection = Selection::kThresholdReuse, .density = options.density, .period = kReusePeriod}, options.n);
  Measured measured;
  IndexBuffer positions;
  std::vector<double> over_k;
  uint32_t exact_steps = 0;
  for (uint32_t step = 0; step < kReuseSteps; ++step) {
    drift(step, noise, values);
    measured.add(values, [&] { select_all(*selector, values, positions); });
    over_k.push_back(static_cast<double>(positions.size()) / static_cast<double>(k));
    exact_steps += step % kReusePeriod == 0 ? 1 : 0;
  }
  const auto [least, most] = std::minmax_element(over_k.begin(), over_k.end());
  nlohmann::json result = row("threshold_reuse", measured, median(over_k));
  result["selected_over_k_min"] = *least;
  result["selected_over_k_max"] = *most;
  result["ratio_mean"] = measured.ratio_mean();
  result["steps"] = kReuseSteps;
  result["exact_steps"] = exact_steps;
  rows.push_back(std::move(result));
}

}  // namespace

nlohmann::json bench_select(const SelectBenchOptions& options) {
  MILLRACE_CHECK(options.n >= 1 && options.n <= kDimensionMax && options.repeats >= 1, options.n, options.repeats);
  MILLRACE_CHECK(options.density > 0 && options.density <= 1, options.density);
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  std::vector<float> values = gaussian(options.n, options.seed);
  nlohmann::json rows = nlohmann::json::array();
  bench_stationary(options, values, rows);
  bench_reuse(options, std::move(values), rows);
  return {{"bench", "select"},
          {"n", options.n},
          {"density", options.density},
          {"k", k_of({.density = options.density}, options.n)},
          {"seed", options.seed},
          {"repeats", options.repeats},
          {"threads", 1},
          {"rows", std::move(rows)}};
}

}  // namespace millrace::cli
