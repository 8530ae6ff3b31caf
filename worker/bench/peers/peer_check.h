#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/bench/peers/peer_inputs.h"
#include "worker/peer/collectives/allreduce.h"

namespace millrace::bench {

/// Returns the sum of all ranks' contributions, index by index: [n], exact.
std::vector<float> summed_inputs(const PeerInputs& inputs, uint32_t size);

/// Returns a hash of a stream's bits: its form, indices and values.
uint64_t bits_of(const StreamView& stream);

/// Returns whether `sum` has at every index the value of `expected` ([n]), but for an error of `off` at most.
bool agrees(const StreamView& sum, std::span<const float> expected, float off);

/// Returns the values that this rank retains for later, [n]: entries of its own that were not handed over, and the
/// values returned to it.
std::vector<float> residual_after(const peer::AlgorithmInfo& info, const StreamView& own, const peer::Reduced& reduced);

}  // namespace millrace::bench
