#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/grid/grid.h"
#include "protocol/datagram/window/window_code.h"

namespace millrace::worker {

/// Returns the largest magnitude of one worker's integer: the sum of all `workers` fits an i32, one value the codec. A
/// power of two where the codec has 32 bits, see to_grid().
/// REQUIRES: workers >= 1.
inline int32_t grid_limit(protocol::WindowValueCodec codec, uint32_t workers) {
  MILLRACE_CHECK(workers >= 1);
  const uint32_t share = static_cast<uint32_t>(INT32_MAX) / workers;
  if (codec == protocol::WindowValueCodec::kFixed16) return static_cast<int32_t>(std::min<uint32_t>(share, INT16_MAX));
  return static_cast<int32_t>(std::bit_floor(share));
}

}  // namespace millrace::worker
