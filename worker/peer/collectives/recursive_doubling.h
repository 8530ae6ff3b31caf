#pragma once

#include "worker/peer/collectives/allreduce.h"

namespace millrace::peer {

/// Combines the streams of all ranks, on every rank. In step i ranks 2^i apart exchange their combined streams, and
/// each combines the two, the lower rank's first. Let F be 2^floor(log2 P): a rank r >= F sends its stream to rank r -
/// F first, and gets the result from it.
///
/// own    the rank's contribution, ready to send, and its decoding at the others.
/// Tags   below 64.
/// Bytes  a rank: log2 P messages of the stream combined so far; one more of each, where P is no power of two.
Task<Result<SharedStream>> recursive_doubling(Channel& channel, Packed own, const AllreduceSettings& settings);

}  // namespace millrace::peer
