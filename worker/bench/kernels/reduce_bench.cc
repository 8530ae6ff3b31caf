#include "worker/bench/kernels/reduce_bench.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/accumulate/accumulator.h"
#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/reduce/magnitude_histogram.h"
#include "kernels/reduce/reduce.h"
#include "worker/bench/kernels/measure.h"

namespace millrace::bench {
namespace {

/// Indices drawn with geometric gaps: every index with probability `density`, without a look at the others.
Stream uniform_stream(uint64_t n, double density, RandomSequence& random) {
  Stream stream = Stream::empty(n);
  const double keep = density < 1 ? std::log1p(-density) : -1e300;
  for (double at = 0;; at += 1) {
    at += std::floor(std::log1p(-random.next_unit()) / keep);
    if (at >= static_cast<double>(n)) return stream;
    stream.indices.push_back(static_cast<uint32_t>(at));
    stream.values.push_back(static_cast<float>(random.next_normal()));
  }
}

struct Input {
  std::vector<Stream> streams;
  std::vector<StreamView> views;
  uint64_t entries = 0;
  Stream sum;
  Stream carried;  ///< half of the sum, the larger magnitudes
};

Input make_input(const ReduceBenchOptions& options) {
  Input input;
  RandomSequence random(random_key(options.seed));
  for (uint32_t i = 0; i < options.workers; ++i) {
    input.streams.push_back(uniform_stream(options.n, options.density, random));
  }
  for (const Stream& stream : input.streams) {
    input.views.push_back(stream.view());
    input.entries += stream.count();
  }
  input.sum = to_sparse(sum_many(input.views)->view());
  MagnitudeHistogram histogram;
  histogram.add(input.sum.values);
  const HistogramThreshold cut = histogram_threshold(histogram, input.sum.count() / 2);
  IndexBuffer positions;
  select_by_histogram(input.sum.values, cut.bin, cut.take, positions);
  input.carried = Stream::empty(options.n);
  for (const uint32_t position : positions) {
    input.carried.indices.push_back(input.sum.indices[position]);
    input.carried.values.push_back(input.sum.values[position]);
  }
  return input;
}

double ns_since(TimeNs begin) { return static_cast<double>(monotonic_now_ns() - begin); }

/// A row: `run` over `entries` entries, each time after a memory pass.
template <typename Run>
nlohmann::json measure(const std::string& algorithm, const Input& input, uint64_t entries, uint32_t repeats,
                       Run&& run) {
  std::vector<double> ns, ratios;
  const double count = static_cast<double>(std::max<uint64_t>(entries, 1));
  const double pass_count = static_cast<double>(std::max<uint64_t>(input.entries, 1));
  run();
  for (uint32_t i = 0; i < repeats; ++i) {
    const TimeNs pass_begin = monotonic_now_ns();
    const double seen = memory_pass(input.streams);
    const double pass_ns = std::max(ns_since(pass_begin), 1.0) / pass_count;
    MILLRACE_CHECK(std::isfinite(seen), seen);
    const TimeNs begin = monotonic_now_ns();
    run();
    ns.push_back(std::max(ns_since(begin), 1.0) / count);
    ratios.push_back(ns.back() / pass_ns);
  }
  return {{"algorithm", algorithm},
          {"entries", entries},
          {"mentries_s", 1e3 / median(ns)},
          {"ns_per_entry", median(ns)},
          {"ratio_to_memory_pass", median(ratios)}};
}

}  // namespace

nlohmann::json bench_reduce(const ReduceBenchOptions& options) {
  MILLRACE_CHECK(options.n >= 1 && options.n <= kDimensionMax && options.workers >= 1 && options.repeats >= 1,
                 options.n, options.workers, options.repeats);
  MILLRACE_CHECK(options.density > 0 && options.density <= 1, options.density);
  const Input input = make_input(options);
  const StreamView first = input.views.front(), second = input.views.back();
  nlohmann::json rows = nlohmann::json::array();
  const auto row = [&](const char* algorithm, uint64_t entries, auto&& run) {
    rows.push_back(measure(algorithm, input, entries, options.repeats, run));
  };
  double kept = 0;
  row("memory_pass", input.entries, [&] { kept += memory_pass(input.streams); });
  row("sum_two", first.count() + second.count(), [&] { kept += static_cast<double>(sum_two(first, second)->count()); });
  row("sum_many", input.entries, [&] { kept += static_cast<double>(sum_many(input.views)->count()); });
  // At a quarter of the sum: the entries that remain of four workers' when the update is as large as one's
  // contribution.
  MagnitudeHistogram magnitudes;
  magnitudes.add(input.sum.values);
  const uint32_t edge_bin = histogram_threshold(magnitudes, magnitudes.total() / 4 + 1).bin;
  const float edge = std::bit_cast<float>(edge_bin << 16);
  row("sum_at_least", input.entries, [&] { kept += static_cast<double>(sum_at_least(input.views, edge)->count()); });
  row("not_carried", first.count() + input.carried.count(),
      [&] { kept += static_cast<double>(not_carried(first, input.carried.view()).count()); });
  std::vector<float> target(options.n);
  row("add_scaled", input.sum.count(), [&] { add_scaled(target, input.sum.view(), 0.5f); });
  IndexBuffer half;
  for (uint32_t at = 0; at < first.count(); at += 2) half.push_back(at);
  row("accumulate", first.count() + second.count(), [&] {
    Accumulator residual(options.n);
    residual.add(Stream(input.streams.front()));
    residual.add(Stream(input.streams.back()));
    kept += static_cast<double>(residual.take_at(half).count());
  });
  MagnitudeHistogram histogram;
  row("histogram", input.sum.count(), [&] { histogram.add(input.sum.values); });
  const HistogramThreshold cut = histogram_threshold(histogram, histogram.total() / 2);
  IndexBuffer positions;
  row("select_by_cut", input.sum.count(),
      [&] { select_by_histogram(input.sum.values, cut.bin, cut.in_bin / 2, positions); });
  MILLRACE_CHECK(std::isfinite(kept), kept);
  return {{"bench", "reduce"},
          {"n", options.n},
          {"density", options.density},
          {"workers", options.workers},
          {"repeats", options.repeats},
          {"seed", options.seed},
          {"threads", 1},
          {"rows", std::move(rows)}};
}

}  // namespace millrace::bench
