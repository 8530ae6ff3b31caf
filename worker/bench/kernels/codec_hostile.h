#pragma once

#include <nlohmann/json.hpp>

#include "kernels/base/result.h"
#include "worker/bench/kernels/codec_bench.h"

namespace millrace::cli {

/// Measures what decoding hostile bytes takes beside good ones, of every index codec and of every value codec in f32,
/// on one thread: hostile_codes.h says which bytes. `n` is what the receiver expects, and the most that a count may
/// say.
///
/// good      the codes of uniform indices (Gaussian values) of the density; the slowest good ones: codes of other
///           indices (values), of as many as give no longer a code. Filters also of other rates.
/// REQUIRES  as bench_codec(); no trace.
/// Returns   {"bench":"codec_hostile","n":..,"density":..,"k":..,"repeats":..,"seed":..,"threads":1,"rows":[...]}, a
///           row of every codec: {"algorithm":..,"kind":"index" or "value","bytes":.., of the good code
///           "good_us":..,"slowest_good_us":..,"slowest_good":.., which,
///           "cases":.., hostile codes tried, "hostile_us":..,"hostile":.., the slowest one's,
///           "ratio":.., hostile over slowest good,
///           "good_kib":..,"hostile_kib":..,"hostile_memory":..}: the most memory that decoding took at a time, but for
///           what it returned, and of which code; null where the system does not say. Times are minima, output
///           buffers warm.
Result<nlohmann::json> bench_codec_hostile(const CodecBenchOptions& options);

}  // namespace millrace::cli
