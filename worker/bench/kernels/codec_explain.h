#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/result.h"

namespace millrace::bench {

/// Says how the indices of a drawn stream lie.
enum class Clustering : uint8_t {
  kUniform = 1,
  kClustered = 2  ///< nine gaps in ten are of a tenth of the mean: as many bits an index as real gradients take, about
};

struct CodecExplainOptions {
  uint64_t n = uint64_t{1} << 24;
  double density = 0.01;
  Clustering clustering = Clustering::kUniform;
  std::string codec = "auto";
  double link_bits_per_s = 1e9;
  uint32_t repeats = 9;
  uint64_t seed = 1;
  std::string trace = {};  ///< as of CodecBenchOptions
  uint32_t worker = 0;
};

/// Returns codec auto's choice for a stream, and every candidate with its expected and measured times.
///
/// REQUIRES n in [1, 2^28], density in (0, 1], repeats >= 1, a rate above 0.
/// Returns  {"bench":"codec_explain","n":..,"density":..,"k":..,"link_bits_per_s":..,"gap_spread":..,"chosen":..,
///          "why":..,"best":..,"ratio":..,"rows":[...]}; "ratio" is the time of the chosen candidate over that of the
///          best one. A row is
///          {"algorithm":..,"expected_us":..,"measured_us":..,"encode_us":..,"decode_us":..,"wire_us":..,
///          "expected_bytes":..,"bytes":..}: times and bytes measured, but for the expected ones and the wire's, which
///          is bytes over rate. Times are the best of the repeats, which the candidates take in turns.
/// Errors   of the codec's text, of read_trace().
Result<nlohmann::json> explain_codec(const CodecExplainOptions& options);

struct AutoGridOptions {
  uint32_t repeats = 5;
  uint64_t seed = 1;
  uint64_t n_max = uint64_t{1} << 22;
};

/// The choice against the best forced one over n, density, clustering and link rate.
///
/// Returns  {"bench":"codec_auto_grid","cells":..,"ratio_worst":..,"ratio_median":..,"ratio_p90":..,"rows":[...]}; a
///          row is {"algorithm":(chosen),"best":..,"n":..,"density":..,"clustered":..,"link_bits_per_s":..,"ratio":..,
///          "chosen_us":..,"best_us":..}, with times as of explain_codec().
nlohmann::json codec_auto_grid(const AutoGridOptions& options);

}  // namespace millrace::bench
