#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/result.h"

namespace millrace::bench {

struct CodecBenchOptions {
  uint64_t n = uint64_t{1} << 24;  ///< dimension
  double density = 0.01;
  uint32_t repeats = 9;
  uint64_t seed = 1;
  std::string trace = {};  ///< a file of gradients (trace.h) in place of drawn indices; n is then its own
  uint32_t worker = 0;     ///< of the trace
};

/// Measures every index codec on uniformly drawn indices and every value codec on as many Gaussian f32 values. Or all
/// of them on the largest entries of a trace. On one thread, output buffers warm.
///
/// REQUIRES n in [1, 2^28], density in (0, 1], repeats >= 1.
/// Returns  {"bench":"codec","n":..,"density":..,"k":..,"repeats":..,"seed":..,"threads":1,"rows":[...]}. Rows:
///          - memcpy, of the indices: {"algorithm":"memcpy","kind":"memory","gb_s":..}.
///          - Every index codec, by its name:
///            {"algorithm":..,"kind":"index","bits_per_index":..,"entropy_bits_per_index":..,
///            "encode_mindex_s":..,"decode_mindex_s":..,"decoded_over_k":..}. All are per encoded index; the entropy is
///            log2 C(n, k) / k.
///          - Every value codec, by its word (raw: f32; QSGD: qsgd2, qsgd4, qsgd8): {"algorithm":..,"kind":"value",
///            "bits_per_value":..,"encode_gb_s":..,"decode_gb_s":..,"relative_error":..,"residual_over_gradient":..}.
///            GB are of f32 in or out; the error is ||decoded - value|| / ||value||. The last is the converged residual
///            of error feedback on Gaussian gradients (up to 8192 values), over a gradient. Null where it does not
///            converge.
///          - Every method (kernels/methods), as codec_methods.h describes, and 3LC on a whole gradient: the trace, or
///            at most 2^22 Gaussian values.
///          Curve fits have "over_sort": their encoding over std::sort of the values. Times are medians. Rows of Bloom
///          filters have "query_m_s", indices queried while decoding, in millions a second.
///          Of a trace also "trace", "worker" and "rice_blocks_bits_per_index". The last is Rice coding with the best
///          parameter for every block of 128 gaps, and 5 bits for the parameter. Rows of indices have
///          "over_rice_blocks", their bits over those.
/// Errors   those of read_trace(); invalid_argument: the trace has infinities.
Result<nlohmann::json> bench_codec(const CodecBenchOptions& options);

}  // namespace millrace::bench
