#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/result.h"

namespace millrace::program {

inline constexpr uint64_t kLayerValuesMax = uint64_t{1} << 32;
inline constexpr size_t kLayersMax = 10'000;

/// Returns the values of each layer of a model: of "4096,2359296", or of the file in "@PATH". Its numbers have commas,
/// spaces or line ends between them.
///
/// Errors   invalid_argument: no numbers, one that is not from 1 to kLayerValuesMax, more than kLayersMax. io: no such
///          file, or one that is longer than such numbers.
Result<std::vector<uint64_t>> layer_sizes(const std::string& text);

}  // namespace millrace::program
