#pragma once

#include <nlohmann/json.hpp>

#include "kernels/base/result.h"
#include "worker/bench/kernels/codec_bench.h"

namespace millrace::bench {

/// Measures the decoding of hostile bytes beside good ones, of every index codec and of every value codec in f32, on
/// one thread. hostile_codes.h makes the bytes. `n` is the receiver's expected count, and the most that a code's count
/// may be.
///
/// good      the codes of uniform indices (Gaussian values) of the density. The slowest good ones are codes of other
///           indices (values), as many as give no longer a code. Filters also of other rates.
/// REQUIRES  as bench_codec(); no trace.
/// Returns   {"bench":"codec_hostile","n":..,"density":..,"k":..,"repeats":..,"seed":..,"threads":1,"rows":[...]}.
///           A row of every codec:
///           {"algorithm":..,"kind":"index" or "value","bytes":.., of the good code
///           "good_us":..,"slowest_good_us":..,"slowest_good":.., which.
///           "cases":.., hostile codes tried, "hostile_us":..,"hostile":.., the slowest one's.
///           "ratio":.., hostile over slowest good.
///           "good_kib":..,"hostile_kib":..,"hostile_memory":..}: the peak memory of decoding, without its result, and
///           the code that needed it. Null where the system does not report memory. Times are minima, output buffers
///           warm.
Result<nlohmann::json> bench_codec_hostile(const CodecBenchOptions& options);

}  // namespace millrace::bench
