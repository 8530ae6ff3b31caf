#pragma once

#include "worker/peer/collectives/allreduce.h"

namespace millrace::peer {

/// Every rank's stream, combined, on every rank: in step i ranks 2^i apart exchange all that they have, and each
/// combines the two, the lower rank's first. Ranks from 2^floor(log2 P) on give what they have to the rank so far below
/// them, and get the result from it.
///
/// own    the rank's contribution, ready to send, and what others decode of it.
/// Tags   below 64.
/// Bytes  a rank: log2 P messages of what was combined so far; one more of each, where P is no power of two.
Task<Result<HeldStream>> recursive_doubling(Channel& channel, Packed own, const AllreduceSettings& settings);

}  // namespace millrace::peer
