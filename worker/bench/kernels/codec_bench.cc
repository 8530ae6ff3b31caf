#include "worker/bench/kernels/codec_bench.h"

#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/entropy_bound.h"
#include "kernels/select/select.h"
#include "kernels/select/top_k.h"
#include "worker/bench/kernels/codec_methods.h"
#include "worker/bench/kernels/trace.h"

namespace millrace::bench {
namespace {

/// Uniform indices by geometric gaps.
IndexBuffer codec_uniform_indices(const CodecBenchOptions& options) {
  RandomSequence random(RandomKey::from(options.seed));
  IndexBuffer indices;
  const double scale = options.density < 1.0 ? 1.0 / std::log1p(-options.density) : 0.0;
  double at = -1;
  while (true) {
    at += 1.0 + std::floor(std::log(1.0 - random.next_unit()) * scale);
    if (at >= static_cast<double>(options.n)) break;
    indices.push_back(static_cast<uint32_t>(at));
  }
  if (indices.empty()) indices.push_back(0);
  return indices;
}

Buffer<float> gaussian_values(size_t count, uint64_t seed) {
  RandomSequence random(random_key(seed, 1));
  Buffer<float> values(count);
  for (float& value : values) value = static_cast<float>(random.next_normal());
  return values;
}

/// Holds the coded data.
struct CodecBenchData {
  uint64_t n = 0;
  IndexBuffer indices;
  Buffer<float> values;  ///< as many
  Buffer<float> whole;   ///< a gradient of which nothing was selected
};

constexpr uint64_t kWholeMax = uint64_t{1} << 22;  // values drawn

CodecBenchData drawn_data(const CodecBenchOptions& options) {
  CodecBenchData data{options.n, codec_uniform_indices(options), {}, {}};
  data.values = gaussian_values(data.indices.size(), options.seed);
  data.whole = gaussian_values(std::min(options.n, kWholeMax), options.seed + 1);
  return data;
}

/// The largest entries of a worker of the trace.
Result<CodecBenchData> trace_data(const CodecBenchOptions& options) {
  const auto accumulator = read_trace(options.trace, options.worker);
  if (!accumulator) return std::unexpected(accumulator.error());
  CodecBenchData data;
  data.n = accumulator->size();
  const SelectionSpec top_k{.selection = SelectionId::kTopK, .density = options.density};
  if (auto done = select_top_k(*accumulator, k_of(top_k, data.n), data.indices); !done) {
    return std::unexpected(done.error());
  }
  for (const uint32_t index : data.indices) data.values.push_back((*accumulator)[index]);
  data.whole.assign(accumulator->begin(), accumulator->end());
  return data;
}

/// Median time of `repeats` runs, in seconds.
template <typename Run>
double codec_seconds(uint32_t repeats, const Run& run) {
  run();  // warms the buffers
  std::vector<double> times;
  for (uint32_t i = 0; i < repeats; ++i) {
    const TimeNs start = monotonic_now_ns();
    run();
    times.push_back(static_cast<double>(std::max<TimeNs>(monotonic_now_ns() - start, 1)) * 1e-9);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

nlohmann::json codec_index_row(const IndexCodec& codec, const CodecBenchData& data, const CodecBenchOptions& options) {
  const IndexSpan indices = data.indices;
  EncodeOptions encode;
  encode.spec.index = codec.id();
  encode.random = RandomKey::from(options.seed);
  ByteBuffer bytes;
  IndexBuffer added;
  const double encode_s = codec_seconds(options.repeats, [&] {
    bytes.clear();
    const Status done = codec.encode(indices, data.n, encode, bytes, codec.lossless() ? nullptr : &added);
    MILLRACE_CHECK(done.has_value());
  });
  const IndexSpan said = codec.lossless() ? indices : IndexSpan(added);
  IndexBuffer decoded;
  const double decode_s = codec_seconds(options.repeats, [&] {
    const Status done = codec.decode(bytes, data.n, said.size(), decoded);
    MILLRACE_CHECK(done.has_value());
  });
  MILLRACE_CHECK(std::equal(said.begin(), said.end(), decoded.begin(), decoded.end()), said.size(), decoded.size());
  const double k = static_cast<double>(indices.size());
  nlohmann::json row = {{"algorithm", codec.name()},
                        {"kind", "index"},
                        {"bits_per_index", 8.0 * static_cast<double>(bytes.size()) / k},
                        {"entropy_bits_per_index", entropy_bits_per_index(data.n, indices.size())},
                        {"encode_mindex_s", k / encode_s * 1e-6},
                        {"decode_mindex_s", k / decode_s * 1e-6},
                        {"decoded_over_k", static_cast<double>(said.size()) / k}};
  // A filter is asked for every index.
  if (codec.takes_rate()) row["query_m_s"] = static_cast<double>(data.n) / decode_s * 1e-6;
  return row;
}

double codec_relative_error(std::span<const float> values, std::span<const float> decoded) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(double{decoded[i]} - double{values[i]}, 2);
    norm += std::pow(double{values[i]}, 2);
  }
  return norm == 0 ? 0 : std::sqrt(error / norm);
}

/// Returns the converged residual of error feedback, in gradients: every step adds a new Gaussian one, and the coded
/// values leave. About 0.75 and less where the codec is a contraction for such values. Empty: it grows until it cannot
/// be coded.
std::optional<double> residual_over_gradient(const CodecSpec& spec, size_t count, uint64_t seed) {
  constexpr uint64_t kSteps = 400;
  constexpr uint64_t kMeasured = 100;  // of them, the last ones
  const ValueCodec& codec = *find_value_codec(spec.value);
  Buffer<float> accumulator(count, 0.0F);
  Buffer<float> decoded(count);
  ByteBuffer bytes;
  double residual_norm = 0;
  double gradient_norm = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const Buffer<float> gradient = gaussian_values(count, seed + step);
    for (size_t i = 0; i < count; ++i) accumulator[i] += gradient[i];
    bytes.clear();
    const EncodeOptions encode{spec, random_key(seed, step), 0};
    if (!codec.encode({}, accumulator, encode, bytes, std::span<float>(decoded))) return std::nullopt;
    for (size_t i = 0; i < count; ++i) accumulator[i] -= decoded[i];
    if (step + kMeasured < kSteps) continue;
    for (size_t i = 0; i < count; ++i) {
      residual_norm += std::pow(double{accumulator[i]}, 2);
      gradient_norm += std::pow(double{gradient[i]}, 2);
    }
  }
  return std::sqrt(residual_norm / gradient_norm);
}

/// The words under which a codec is measured: QSGD's for three numbers of bits, the others' as they are without
/// parameters.
std::vector<std::string> measured_words(const ValueCodec& codec) {
  if (codec.id() == ValueCodecId::kRaw) return {"f32"};
  if (codec.id() == ValueCodecId::kQsgd) return {"qsgd2", "qsgd4", "qsgd8"};
  return {codec.text(CodecSpec())};
}

/// Curves are fitted to values that were sorted: what sorting alone takes, by std::sort.
double sort_seconds(std::span<const float> values, const CodecBenchOptions& options) {
  std::vector<float> sorted;
  return codec_seconds(options.repeats, [&] {
    sorted.assign(values.begin(), values.end());
    std::ranges::sort(sorted);
  });
}

nlohmann::json codec_value_row(const std::string& word, const CodecBenchData& data, const CodecBenchOptions& options) {
  const auto spec = codec_from_text("raw+" + word);
  MILLRACE_CHECK(spec.has_value(), word);
  const ValueCodec& codec = *find_value_codec(spec->value);
  const std::span<const float> values = data.values;
  const EncodeOptions encode{*spec, RandomKey::from(options.seed), 0};
  const bool lossless = codec.lossless(*spec);
  ByteBuffer bytes;
  Buffer<float> said(lossless ? 0 : values.size());
  const double encode_s = codec_seconds(options.repeats, [&] {
    bytes.clear();
    MILLRACE_CHECK(codec.encode(data.indices, values, encode, bytes, std::span<float>(said)).has_value(), word);
  });
  Buffer<float> decoded(values.size());
  const double decode_s = codec_seconds(options.repeats, [&] {
    MILLRACE_CHECK(codec.decode(bytes, data.indices, std::span<float>(decoded)).has_value(), word);
  });
  const double gb = static_cast<double>(values.size_bytes()) * 1e-9;
  nlohmann::json row = {
      {"algorithm", word},
      {"kind", "value"},
      {"bits_per_value", 8.0 * static_cast<double>(bytes.size()) / static_cast<double>(values.size())},
      {"encode_gb_s", gb / encode_s},
      {"decode_gb_s", gb / decode_s},
      {"relative_error", codec_relative_error(values, decoded)},
      {"residual_over_gradient", 0.0}};
  if (word.starts_with("fit_")) row["over_sort"] = encode_s / sort_seconds(values, options);
  constexpr size_t kFedBack = 8192;
  if (lossless) return row;
  const auto residual = residual_over_gradient(*spec, std::min(values.size(), kFedBack), options.seed);
  row["residual_over_gradient"] = residual && std::isfinite(*residual) ? nlohmann::json(*residual) : nlohmann::json();
  return row;
}

nlohmann::json memcpy_row(IndexSpan indices, const CodecBenchOptions& options) {
  IndexBuffer copy(indices.size());
  uint64_t seen = 0;
  const double copy_s = codec_seconds(options.repeats, [&] {
    std::memcpy(copy.data(), indices.data(), indices.size_bytes());
    seen += copy[copy.size() / 2];
  });
  MILLRACE_CHECK(seen == (options.repeats + uint64_t{1}) * indices[indices.size() / 2], seen);
  return {
      {"algorithm", "memcpy"}, {"kind", "memory"}, {"gb_s", static_cast<double>(indices.size_bytes()) / copy_s * 1e-9}};
}

}  // namespace

Result<nlohmann::json> bench_codec(const CodecBenchOptions& options) {
  MILLRACE_CHECK(options.n >= 1 && options.n <= uint64_t{1} << 28 && options.repeats >= 1, options.n, options.repeats);
  MILLRACE_CHECK(options.density > 0 && options.density <= 1, options.density);
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  const bool traced = !options.trace.empty();
  const Result<CodecBenchData> data = traced ? trace_data(options) : drawn_data(options);
  if (!data) return std::unexpected(data.error());
  const double rice_blocks = rice_blocks_bits_per_index(data->indices);
  nlohmann::json rows = nlohmann::json::array();
  rows.push_back(memcpy_row(data->indices, options));
  for (const IndexCodec* codec : index_codecs()) {
    rows.push_back(codec_index_row(*codec, *data, options));
    if (traced) rows.back()["over_rice_blocks"] = rows.back().at("bits_per_index").get<double>() / rice_blocks;
  }
  for (const ValueCodec* codec : value_codecs()) {
    for (const std::string& word : measured_words(*codec)) rows.push_back(codec_value_row(word, *data, options));
  }
  for (nlohmann::json& row : method_rows({data->n, false, data->indices, data->values}, options)) {
    rows.push_back(std::move(row));
  }
  const StreamView whole{data->whole.size(), true, {}, data->whole};
  for (nlohmann::json& row : dense_method_rows(whole, options)) rows.push_back(std::move(row));
  nlohmann::json report = {{"bench", "codec"},
                           {"n", data->n},
                           {"density", options.density},
                           {"k", data->indices.size()},
                           {"repeats", options.repeats},
                           {"seed", options.seed},
                           {"threads", 1},
                           {"rows", std::move(rows)}};
  if (traced) {
    report["trace"] = options.trace;
    report["worker"] = options.worker;
    report["rice_blocks_bits_per_index"] = rice_blocks;
  }
  return report;
}

}  // namespace millrace::bench
