#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/bench/peers/peer_inputs.h"
#include "worker/peer/collectives/allreduce.h"

namespace millrace::cli {

/// The sum of all ranks' contributions, index by index: [n], exact.
std::vector<float> summed_inputs(const PeerInputs& inputs, uint32_t size);

/// Which bits a stream has: its form, indices and values.
uint64_t bits_of(const StreamView& stream);

/// Whether `sum` has at every index the value of `expected` ([n]); `off` is by how much it may be wrong there.
bool agrees(const StreamView& sum, std::span<const float> expected, float off);

/// Returns the values that this rank retains for later, [n]: entries of its own that were not handed over, and the
/// values returned to it.
std::vector<float> kept_by(const peer::AlgorithmInfo& info, const StreamView& own, const peer::Reduced& reduced);

}  // namespace millrace::cli
