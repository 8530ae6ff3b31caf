#pragma once

#include <cstdint>

#include "kernels/stream/stream.h"

namespace millrace::bench {

/// Returns the gradient that `worker` pushes in `round`: exactly k distinct uniform indices, increasing, with standard
/// normal values. A function of its arguments alone, so that any process can make any other's.
Stream serve_input(uint64_t n, uint64_t k, uint64_t seed, uint32_t worker, uint32_t round);

}  // namespace millrace::bench
