#pragma once

#include "worker/peer/collectives/reduce_scatter.h"

/// A slice of a sum as the rank that is in charge of it sends it: in the form that takes fewer bytes, quantized if
/// asked for.
namespace millrace::peer {

/// Errors   invalid_argument: a quantizer that is none, or for what is not a sum: nothing could be kept for later.
Status check_sum_quantizer(const AllreduceSettings& settings, std::string_view algorithm);

/// Packs `mine.sum` with the settings' sum quantizer, or their lossless codec for sums where there is none.
///
/// Law      what the quantizer changes of the sum goes into `mine.returned` of this rank, which uses its own decoding
///          as well.
/// Bound    the quantizer's: of qsgd with b bits each value is off by its bucket's scale / (2^(b-1) - 1) at most.
/// Errors   as the codec's.
Result<Packed> pack_own_sum(Channel& channel, OwnSlice& mine, const AllreduceSettings& settings);

}  // namespace millrace::peer
