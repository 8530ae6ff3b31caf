#include "worker/bench/kernels/codec_methods.h"

#include <cmath>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/codec/codec.h"
#include "kernels/methods/methods.h"
#include "worker/bench/kernels/measure.h"

namespace millrace::bench {
namespace {

constexpr uint64_t kContainerHeaderBytes = 64;  // protocol/wire/container.md

/// Median time of `repeats` runs, in seconds.
template <typename Run>
double methods_seconds(uint32_t repeats, const Run& run) {
  run();  // warms the buffers
  std::vector<double> times;
  for (uint32_t i = 0; i < repeats; ++i) {
    const TimeNs start = monotonic_now_ns();
    run();
    times.push_back(static_cast<double>(std::max<TimeNs>(monotonic_now_ns() - start, 1)) * 1e-9);
  }
  return median(std::move(times));
}

/// Both sparse, or both dense.
double methods_relative_error(const StreamView& selected, const StreamView& decoded) {
  const auto index_of = [](const StreamView& stream, size_t at) { return stream.dense ? at : stream.indices[at]; };
  double error = 0;
  double norm = 0;
  size_t at = 0;
  for (size_t i = 0; i < selected.values.size(); ++i) {
    const size_t index = index_of(selected, i);
    for (; at < decoded.values.size() && index_of(decoded, at) < index; ++at) {
      error += std::pow(double{decoded.values[at]}, 2);
    }
    const bool there = at < decoded.values.size() && index_of(decoded, at) == index;
    error += std::pow((there ? double{decoded.values[at++]} : 0.0) - double{selected.values[i]}, 2);
    norm += std::pow(double{selected.values[i]}, 2);
  }
  for (; at < decoded.values.size(); ++at) error += std::pow(double{decoded.values[at]}, 2);
  return norm == 0 ? 0 : std::sqrt(error / norm);
}

/// Of a dense stream of kind "method_dense".
nlohmann::json method_row(const Method& method, const StreamView& stream, const CodecBenchOptions& options) {
  const auto spec = codec_from_text(method.codec_up);
  MILLRACE_CHECK(spec.has_value(), std::string(method.codec_up));
  const EncodeOptions encode{*spec, RandomKey::from(options.seed), 0};
  CodedStream coded;
  const double encode_s = methods_seconds(options.repeats, [&] {
    auto result = encode_stream(stream, {}, encode);
    MILLRACE_CHECK(result.has_value(), std::string(method.name));
    coded = std::move(*result);
  });
  MILLRACE_CHECK(coded.dense == stream.dense, std::string(method.name));
  Stream received;
  received.dimension = stream.dimension;
  received.dense = stream.dense;
  const double decode_s = methods_seconds(options.repeats, [&] {
    if (!coded.dense) {
      MILLRACE_CHECK(find_index_codec(coded.index_codec)
                         ->decode(coded.index_bytes, coded.dimension, coded.count, received.indices)
                         .has_value());
    }
    received.values.resize(coded.count);
    MILLRACE_CHECK(find_value_codec(coded.value_codec)
                       ->decode(coded.value_bytes, received.indices, std::span<float>(received.values))
                       .has_value());
  });
  const auto entries = static_cast<double>(stream.values.size());
  const uint64_t bytes = coded.index_bytes.size() + coded.value_bytes.size() + kContainerHeaderBytes;
  return {{"algorithm", method.name},
          {"kind", stream.dense ? "method_dense" : "method"},
          {"codec", method.codec_up},
          {"bits_per_entry", 8.0 * static_cast<double>(bytes) / entries},
          {"encode_mentry_s", entries / encode_s * 1e-6},
          {"decode_mentry_s", entries / decode_s * 1e-6},
          {"relative_error", methods_relative_error(stream, received.view())}};
}

}  // namespace

std::vector<nlohmann::json> dense_method_rows(const StreamView& whole, const CodecBenchOptions& options) {
  return {method_row(*find_method("three_lc"), whole, options)};
}

std::vector<nlohmann::json> method_rows(const StreamView& selected, const CodecBenchOptions& options) {
  std::vector<nlohmann::json> rows;
  for (const Method& method : methods()) rows.push_back(method_row(method, selected, options));
  return rows;
}

}  // namespace millrace::bench
