#pragma once

#include "worker/peer/collectives/reduce_scatter.h"

/// Packs a slice of a sum, at the rank that owns it, in the form that takes fewer bytes. Quantizes it if the settings
/// have a quantizer.
namespace millrace::peer {

/// Errors   invalid_argument: an invalid quantizer, or one for a result that is not a sum: its error could not be
///          retained.
Status check_sum_quantizer(const AllreduceSettings& settings, std::string_view algorithm);

/// Packs `mine.sum` with the settings' sum quantizer, or their lossless codec for sums where there is none.
///
/// Law      the quantizer's changes of the sum go into `mine.returned` of this rank, which uses its own decoding as
///          well.
/// Bound    the quantizer's: of qsgd with b bits each value is off by its bucket's scale / (2^(b-1) - 1) at most.
/// Errors   as the codec's.
Result<Packed> pack_own_sum(Channel& channel, OwnSlice& mine, const AllreduceSettings& settings);

}  // namespace millrace::peer
