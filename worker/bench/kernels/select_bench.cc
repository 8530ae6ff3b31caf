#include "worker/bench/kernels/select_bench.h"

#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/select/select.h"
#include "kernels/select/top_k.h"
#include "worker/bench/kernels/measure.h"
#include "worker/bench/kernels/trace.h"
#include "worker/program/json_text.h"

namespace millrace::bench {
namespace {

// Drifting data: x' = 0.95 x + noise, as a gradient's accumulator moves. The noise's scale swings by a third up and
// down in 256 steps (at most 0.7 % a step). An entry's noise is normal, times its magnitude at the start where that is
// a trace's.
constexpr double kKeep = 0.95;
constexpr double kSwing = 0.3;
constexpr double kSwingSteps = 256;

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

class SelectMeasured {
 public:
  template <typename Run>
  void add(const std::vector<float>& values, Run&& run) {
    float seen = max_magnitude(values);
    const TimeNs read_begin = monotonic_now_ns();
    seen += max_magnitude(values);
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

nlohmann::json select_row(const std::string& algorithm, const SelectMeasured& measured, double selected_over_k) {
  return {{"algorithm", algorithm},
          {"ms", measured.ms()},
          {"ratio_to_read_pass", measured.ratio()},
          {"selected_over_k", selected_over_k}};
}

/// Holds the data on which the selections are measured.
struct SelectBenchData {
  std::vector<float> values;
  uint64_t trace_n = 0;  ///< 0: Gaussian
};

Result<SelectBenchData> data_for(const SelectBenchOptions& options) {
  if (options.trace.empty()) return SelectBenchData{gaussian(options.n, options.seed), 0};
  const auto trace = read_trace(options.trace, options.worker);
  if (!trace) return std::unexpected(trace.error());
  if (!std::isfinite(max_magnitude(*trace))) {
    return fail(ErrorCode::kNonFinite, "trace '" + options.trace + "' holds NaN or infinity");
  }
  SelectBenchData data{std::vector<float>(options.n), trace->size()};
  for (size_t i = 0; i < data.values.size(); ++i) data.values[i] = (*trace)[i % trace->size()];
  return data;
}

std::string_view word_of(const SelectionInfo& info) { return info.alias.empty() ? info.name : info.alias; }

class Benched {
 public:
  Benched(const SelectionInfo& info, const SelectionSpec& spec, uint64_t n, uint64_t seed) : info_(info), seed_(seed) {
    auto made = make_selector(spec, n);
    MILLRACE_CHECK(made.has_value(), made.error().message);
    selector_ = std::move(*made);
  }
  void run(std::span<const float> values, uint64_t step) {
    const StreamView view{values.size(), true, {}, values};
    const SelectContext context{step, random_key(seed_, 0, step)};
    const Status done = info_.use == SelectionUse::kUnbiased ? selector_->draw(view, context, positions_, drawn_)
                                                             : selector_->select(view, context, positions_);
    MILLRACE_CHECK(done.has_value(), done.error().message);
  }
  uint64_t selected() const { return positions_.size(); }

 private:
  const SelectionInfo& info_;
  uint64_t seed_;
  std::unique_ptr<Selector> selector_;
  IndexBuffer positions_;
  Buffer<float> drawn_;
};

// The least power of two that leaves at most the density of the first entries.
double variance_for(const SelectionInfo& info, const SelectBenchOptions& options, std::span<const float> values) {
  constexpr size_t kTried = 65536;
  constexpr double kVarianceMax = 1 << 20;
  const std::span<const float> tried = values.first(std::min(kTried, values.size()));
  double variance = 1.0 / 64;
  for (; variance < kVarianceMax; variance *= 2) {
    Benched benched(info, {.selection = info.selection, .variance = variance}, tried.size(), options.seed);
    benched.run(tried, 0);
    if (static_cast<double>(benched.selected()) <= options.density * static_cast<double>(tried.size())) break;
  }
  return variance;
}

SelectionSpec spec_for(const SelectionInfo& info, const SelectBenchOptions& options, std::span<const float> values) {
  double amount = options.density;
  if (info.amount() == SelectionAmount::kMagnitude) {
    const uint64_t k = k_of({.density = options.density}, options.n);
    amount = std::max<double>(top_k_threshold(values, k).value_or(0), 1e-30);
  }
  if (info.amount() == SelectionAmount::kVariance) amount = variance_for(info, options, values);
  const auto spec = selection_from_text(std::string(info.name) + ":" + program::json_text(nlohmann::json(amount)));
  MILLRACE_CHECK(spec.has_value(), spec.error().message);
  return *spec;
}

double over_k(uint64_t selected, const SelectBenchOptions& options) {
  return static_cast<double>(selected) / static_cast<double>(k_of({.density = options.density}, options.n));
}

nlohmann::json read_pass_row(const SelectBenchOptions& options, const std::vector<float>& values) {
  SelectMeasured read_pass;
  for (uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
    read_pass.add(values, [&] { max_magnitude(values); });
  }
  nlohmann::json result = select_row("read_pass", read_pass, 0);
  result["selected_over_k"] = nullptr;
  return result;
}

nlohmann::json stationary_row(const SelectionInfo& info, const SelectBenchOptions& options,
                              const std::vector<float>& values) {
  Benched benched(info, spec_for(info, options, values), options.n, options.seed);
  SelectMeasured measured;
  for (uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
    measured.add(values, [&] { benched.run(values, repeat); });
  }
  return select_row(std::string(word_of(info)), measured, over_k(benched.selected(), options));
}

// Fresh normals every step would take longer than the measured work. So the noise is one array of them, read from
// another offset every step. `base` is empty, or has the factor of each entry's noise.
void drift(uint32_t step, const std::vector<float>& noise, const std::vector<float>& base, std::vector<float>& values) {
  const double phase = 2 * std::numbers::pi * step / kSwingSteps;
  const float scale = static_cast<float>(std::sqrt(1 - kKeep * kKeep) * std::exp(kSwing * std::sin(phase)));
  const size_t n = values.size();
  const size_t offset = random_words(RandomKey::from(step), 0)[0] % n;
  for (size_t i = 0; i < n; ++i) {
    const size_t at = i + offset < n ? i + offset : i + offset - n;
    const float of_entry = base.empty() ? 1.0F : base[i];
    values[i] = static_cast<float>(kKeep) * values[i] + scale * of_entry * noise[at];
  }
}

nlohmann::json drifting_row(const SelectionInfo& info, const SelectBenchOptions& options, const SelectBenchData& data) {
  const SelectionSpec spec = spec_for(info, options, data.values);
  const uint32_t steps = 2 * spec.period + 4;
  const std::vector<float> noise = gaussian(options.n, options.seed + 1);
  const std::vector<float> base = data.trace_n == 0 ? std::vector<float>() : data.values;
  std::vector<float> values = data.values;
  Benched benched(info, spec, options.n, options.seed);
  SelectMeasured measured;
  std::vector<double> counts;
  uint32_t exact_steps = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    drift(step, noise, base, values);
    measured.add(values, [&] { benched.run(values, step); });
    counts.push_back(over_k(benched.selected(), options));
    exact_steps += step % spec.period == 0 ? 1 : 0;
  }
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  nlohmann::json result = select_row(std::string(word_of(info)), measured, median(counts));
  result["selected_over_k_min"] = *least;
  result["selected_over_k_max"] = *most;
  result["ratio_mean"] = measured.ratio_mean();
  result["steps"] = steps;
  result["exact_steps"] = exact_steps;
  return result;
}

}  // namespace

Result<nlohmann::json> bench_select(const SelectBenchOptions& options) {
  MILLRACE_CHECK(options.n >= 1 && options.n <= kDimensionMax && options.repeats >= 1, options.n, options.repeats);
  MILLRACE_CHECK(options.density > 0 && options.density <= 1, options.density);
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  const auto data = data_for(options);
  if (!data) return std::unexpected(data.error());
  nlohmann::json rows = nlohmann::json::array({read_pass_row(options, data->values)});
  std::vector<nlohmann::json> drifting;
  for (const SelectionInfo& info : selections()) {
    // No amount selects about the density: nothing to compare.
    if (info.amount() == SelectionAmount::kNone) continue;
    if (info.reuses_threshold) {
      drifting.push_back(drifting_row(info, options, *data));
    } else {
      rows.push_back(stationary_row(info, options, data->values));
    }
  }
  for (nlohmann::json& each : drifting) rows.push_back(std::move(each));
  nlohmann::json report = {{"bench", "select"},
                           {"n", options.n},
                           {"density", options.density},
                           {"k", k_of({.density = options.density}, options.n)},
                           {"seed", options.seed},
                           {"repeats", options.repeats},
                           {"threads", 1},
                           {"rows", std::move(rows)}};
  if (data->trace_n > 0) {
    report["trace"] = options.trace;
    report["worker"] = options.worker;
    report["trace_n"] = data->trace_n;
  }
  return report;
}

}  // namespace millrace::bench
