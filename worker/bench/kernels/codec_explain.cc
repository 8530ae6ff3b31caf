#include "worker/bench/kernels/codec_explain.h"

#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "kernels/codec/automatic/codec_choice.h"
#include "kernels/select/select.h"
#include "kernels/select/top_k.h"
#include "protocol/container/codec_speeds.h"
#include "worker/bench/kernels/trace.h"

namespace millrace::bench {
namespace {

constexpr double kShortShare = 0.9;   // of the gaps
constexpr double kShortOfMean = 0.1;  // their mean, of the mean of all

/// A gap of at least 1, geometric around `mean`.
double draw_gap(RandomSequence& random, double mean) {
  if (mean <= 1) return 1;
  return 1 + std::floor(std::log(1 - random.next_unit()) / std::log1p(-1 / mean));
}

Stream drawn_stream(uint64_t n, double density, Clustering clustering, uint64_t seed) {
  RandomSequence random(random_key(seed, n));
  Stream stream = Stream::empty(n);
  const double mean = 1 / density;
  const double short_mean = std::max(kShortOfMean * mean, 1.0);
  const double long_mean = std::max((mean - kShortShare * short_mean) / (1 - kShortShare), 1.0);
  for (double at = -1;;) {
    const bool is_short = clustering == Clustering::kClustered && random.next_unit() < kShortShare;
    at += draw_gap(random, clustering == Clustering::kUniform ? mean : (is_short ? short_mean : long_mean));
    if (at >= static_cast<double>(n)) break;
    stream.indices.push_back(static_cast<uint32_t>(at));
    stream.values.push_back(static_cast<float>(random.next_normal()));
  }
  if (stream.indices.empty()) {
    stream.indices.push_back(0);
    stream.values.push_back(1);
  }
  return stream;
}

/// The largest entries of a worker of the trace.
Result<Stream> trace_stream(const CodecExplainOptions& options) {
  const auto accumulator = read_trace(options.trace, options.worker);
  if (!accumulator) return std::unexpected(accumulator.error());
  Stream stream = Stream::empty(accumulator->size());
  const SelectionSpec top_k{.selection = SelectionId::kTopK, .density = options.density};
  if (auto done = select_top_k(*accumulator, k_of(top_k, stream.dimension), stream.indices); !done) {
    return std::unexpected(done.error());
  }
  for (const uint32_t index : stream.indices) stream.values.push_back((*accumulator)[index]);
  return stream;
}

struct ExplainMeasured {
  CodecCandidate candidate;
  CodingTimes best{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), 0};

  double wire_ns(double link_bits_per_s) const { return static_cast<double>(best.bytes) * 8e9 / link_bits_per_s; }
  double total_ns(double link_bits_per_s) const { return best.encode_ns + best.decode_ns + wire_ns(link_bits_per_s); }
};

/// Candidates take turns, there and back, so that other load of the machine affects all of them. The state that the one
/// before leaves in the caches counts as well.
Result<std::vector<ExplainMeasured>> measure_all(const StreamView& stream, const CodecSpec& spec,
                                                 const std::vector<CodecCandidate>& candidates, uint32_t repeats) {
  std::vector<ExplainMeasured> all;
  for (const CodecCandidate& candidate : candidates) all.push_back({candidate});
  for (uint32_t i = 0; i <= repeats; ++i) {
    for (size_t turn = 0; turn < all.size(); ++turn) {
      ExplainMeasured& one = all[i % 2 == 0 ? turn : all.size() - 1 - turn];
      disturb_caches();
      const Result<CodingTimes> times = time_coding(stream, one.candidate, spec);
      if (!times) return std::unexpected(times.error());
      one.best.bytes = times->bytes;
      if (i == 0) continue;  // warms the buffers
      one.best.encode_ns = std::min(one.best.encode_ns, times->encode_ns);
      one.best.decode_ns = std::min(one.best.decode_ns, times->decode_ns);
    }
  }
  return all;
}

const ExplainMeasured& fastest(const std::vector<ExplainMeasured>& all, double link_bits_per_s) {
  return *std::ranges::min_element(all, {}, [&](const ExplainMeasured& one) { return one.total_ns(link_bits_per_s); });
}

const ExplainMeasured& of(const std::vector<ExplainMeasured>& all, const CodecCandidate& candidate) {
  const auto found =
      std::ranges::find_if(all, [&](const ExplainMeasured& m) { return m.candidate.codes_as(candidate); });
  MILLRACE_CHECK(found != all.end());
  return *found;
}

ChoiceInput input_of(const CodecSpec& spec, double link_bits_per_s, Detail detail) {
  ChoiceInput input;
  input.spec = spec;
  input.speeds = &measured_speeds();
  input.link_bits_per_s = link_bits_per_s;
  input.detail = detail;
  return input;
}

/// Of many that are about as fast, the one that was lucky looks best. So the chosen one and those that look best are
/// measured again, by themselves, and these times count.
constexpr size_t kFinalists = 6;
constexpr uint32_t kFinalRepeats = 5;  ///< times the repeats

Result<std::vector<ExplainMeasured>> finalists(const StreamView& stream, const CodecSpec& spec,
                                               std::vector<ExplainMeasured> all, const CodecCandidate& chosen,
                                               double rate, uint32_t repeats) {
  std::ranges::sort(all, {}, [rate](const ExplainMeasured& one) { return one.total_ns(rate); });
  std::vector<CodecCandidate> last{chosen};
  for (const ExplainMeasured& one : all) {
    if (last.size() <= kFinalists && !one.candidate.codes_as(chosen)) last.push_back(one.candidate);
  }
  return measure_all(stream, spec, last, repeats * kFinalRepeats);
}

/// One stream at every rate.
void add_cells(const StreamView& stream, double density, Clustering clustering, const AutoGridOptions& options,
               nlohmann::json& rows) {
  const CodecSpec spec{.automatic = true};
  const CodecChoice every = choose_codecs(stream, input_of(spec, kLinkRateUnknown, Detail::kEverything));
  const auto all = measure_all(stream, spec, every.candidates, options.repeats);
  MILLRACE_CHECK(all.has_value());
  for (const double rate : {1e7, 1e8, 1e9, 1e10, 1e11}) {
    const CodecChoice choice = choose_codecs(stream, input_of(spec, rate, Detail::kToChoose));
    const auto last = finalists(stream, spec, *all, choice.chosen, rate, options.repeats);
    MILLRACE_CHECK(last.has_value());
    const ExplainMeasured& chosen = of(*last, choice.chosen);
    const ExplainMeasured& best = fastest(*last, rate);
    rows.push_back({{"algorithm", candidate_text(chosen.candidate)},
                    {"best", candidate_text(best.candidate)},
                    {"n", stream.dimension},
                    {"density", density},
                    {"clustered", clustering == Clustering::kClustered},
                    {"link_bits_per_s", rate},
                    {"ratio", chosen.total_ns(rate) / best.total_ns(rate)},
                    {"chosen_us", chosen.total_ns(rate) * 1e-3},
                    {"best_us", best.total_ns(rate) * 1e-3}});
  }
}

}  // namespace

Result<nlohmann::json> explain_codec(const CodecExplainOptions& options) {
  MILLRACE_CHECK(options.n >= 1 && options.n <= uint64_t{1} << 28 && options.repeats >= 1, options.n, options.repeats);
  MILLRACE_CHECK(options.density > 0 && options.density <= 1 && options.link_bits_per_s > 0, options.density);
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  const auto spec = codec_from_text(options.codec);
  if (!spec) return fail(spec.error().code, "--codec: " + spec.error().message);
  if (!spec->automatic) {
    return fail(ErrorCode::kInvalidArgument, "--codec: '" + options.codec + "' leaves nothing to choose: auto[+VALUE]");
  }
  const Result<Stream> stream = options.trace.empty()
                                    ? drawn_stream(options.n, options.density, options.clustering, options.seed)
                                    : trace_stream(options);
  if (!stream) return std::unexpected(stream.error());
  const double rate = options.link_bits_per_s;
  const CodecChoice choice = choose_codecs(stream->view(), input_of(*spec, rate, Detail::kEverything));
  if (choice.candidates.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--codec: '" + options.codec + "' cannot code these values");
  }
  const auto all = measure_all(stream->view(), *spec, choice.candidates, options.repeats);
  if (!all) return std::unexpected(all.error());
  nlohmann::json rows = nlohmann::json::array();
  for (const ExplainMeasured& one : *all) {
    rows.push_back({{"algorithm", candidate_text(one.candidate)},
                    {"expected_us", one.candidate.total_ns * 1e-3},
                    {"measured_us", one.total_ns(rate) * 1e-3},
                    {"encode_us", one.best.encode_ns * 1e-3},
                    {"decode_us", one.best.decode_ns * 1e-3},
                    {"wire_us", one.wire_ns(rate) * 1e-3},
                    {"expected_bytes", std::round(one.candidate.bytes)},
                    {"bytes", one.best.bytes}});
  }
  const ExplainMeasured& best = fastest(*all, rate);
  return nlohmann::json{{"bench", "codec_explain"},
                        {"n", stream->dimension},
                        {"density", choice.density},
                        {"k", stream->count()},
                        {"link_bits_per_s", rate},
                        {"gap_spread", choice.gap_spread},
                        {"chosen", candidate_text(choice.chosen)},
                        {"why", choice.text()},
                        {"best", candidate_text(best.candidate)},
                        {"ratio", of(*all, choice.chosen).total_ns(rate) / best.total_ns(rate)},
                        {"rows", std::move(rows)}};
}

nlohmann::json codec_auto_grid(const AutoGridOptions& options) {
  MILLRACE_CHECK(options.repeats >= 1 && options.n_max >= 1, options.repeats, options.n_max);
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  nlohmann::json rows = nlohmann::json::array();
  for (const uint64_t n : {uint64_t{1} << 12, uint64_t{1} << 16, uint64_t{1} << 19, uint64_t{1} << 22}) {
    if (n > options.n_max) break;
    for (const double density : {0.001, 0.01, 0.1, 0.4, 0.8}) {
      for (const Clustering clustering : {Clustering::kUniform, Clustering::kClustered}) {
        const Stream stream = drawn_stream(n, density, clustering, options.seed);
        add_cells(stream.view(), density, clustering, options, rows);
      }
    }
  }
  std::vector<double> ratios;
  for (const nlohmann::json& row : rows) ratios.push_back(row.at("ratio").get<double>());
  std::ranges::sort(ratios);
  nlohmann::json report = {{"bench", "codec_auto_grid"}, {"cells", ratios.size()}, {"repeats", options.repeats},
                           {"seed", options.seed},       {"threads", 1},           {"rows", std::move(rows)}};
  if (ratios.empty()) return report;
  report["ratio_worst"] = ratios.back();
  report["ratio_p90"] = ratios[ratios.size() * 9 / 10];
  report["ratio_median"] = ratios[ratios.size() / 2];
  return report;
}

}  // namespace millrace::bench
