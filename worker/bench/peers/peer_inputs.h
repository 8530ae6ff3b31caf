#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/stream/shared_stream.h"

namespace millrace::bench {

/// Says where the entries of the ranks lie.
enum class InputShape : uint8_t {
  kUniform = 1,    ///< each rank draws its own
  kClustered = 2,  ///< each rank draws blocks of 64 neighbours
  kSame = 3,       ///< all ranks have the same indices
  kDisjoint = 4,   ///< each rank has a range of its own
  kOneRegion = 5,  ///< all in the first sixteenth
};
std::span<const std::string_view> input_shape_names();
std::optional<InputShape> input_shape_of(std::string_view name);

/// Holds the parameters of all ranks' contributions.
struct PeerInputs {
  InputShape shape = InputShape::kUniform;
  uint64_t n = 0;
  uint64_t count = 0;  ///< entries of each rank; fewer where the shape has no room for them
  uint64_t seed = 1;
};

/// Returns the contribution of rank `rank` of `size`. Values are on the grid of 2^-6 in [-16, 16], none 0. So sums of
/// up to 2^10 of them are exact in f32, in any order. REQUIRES: 0 < count <= n, rank < size.
SharedStream peer_input(const PeerInputs& inputs, uint32_t rank, uint32_t size);

}  // namespace millrace::bench
