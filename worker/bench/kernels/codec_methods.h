#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/stream/stream.h"
#include "worker/bench/kernels/codec_bench.h"

namespace millrace::bench {

/// Measures the codec of every method on the same selected entries: differences between the methods' selections do not
/// count.
///
/// selected  sparse, an entry at least.
/// Returns   {"algorithm":NAME,"kind":"method","codec":TEXT,"bits_per_entry":..,"encode_mentry_s":..,
///           "decode_mentry_s":..,"relative_error":..} each. Bits are those of index and value code, tables and the
///           container's header, over the encoded entries. Rates are millions of these a second. The error is ||decoded
///           - selected|| / ||selected||, with 0 for entries that are not decoded. Entries that a Bloom filter adds
///           have value 0.
std::vector<nlohmann::json> method_rows(const StreamView& selected, const CodecBenchOptions& options);

/// Measures the methods for whole gradients (3LC): rows as those above, of kind "method_dense", an entry being a value.
///
/// whole    dense, with a value that is not 0.
std::vector<nlohmann::json> dense_method_rows(const StreamView& whole, const CodecBenchOptions& options);

}  // namespace millrace::bench
