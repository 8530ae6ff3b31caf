#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::training {

/// Returns the order in which a worker takes its rows in an epoch; a function of its arguments alone.
std::vector<uint32_t> epoch_order(size_t rows, uint64_t seed, uint32_t worker, uint32_t epoch);

}  // namespace millrace::training
