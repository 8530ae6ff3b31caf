#include <bit>
#include <limits>
#include <string>

#include "kernels/stream/index_sort.h"
#include "kernels/stream/stream.h"

namespace millrace {

Result<Stream> coalesce(uint64_t dimension, IndexSpan indices, std::span<const float> values) {
  if (indices.size() != values.size()) {
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(indices.size()) + " indices for " + std::to_string(values.size()) + " values");
  }
  if (indices.size() > std::numeric_limits<uint32_t>::max()) {
    return fail(ErrorCode::kInvalidArgument, "more than 2^32 - 1 entries to coalesce");
  }
  Buffer<uint64_t> keys(indices.size());
  bool increasing = true;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= dimension) {
      return fail(ErrorCode::kInvalidArgument, "index " + std::to_string(indices[i]) + " (entry " + std::to_string(i) +
                                                   ") is out of range of dimension " + std::to_string(dimension));
    }
    keys[i] = index_key(indices[i], static_cast<uint32_t>(i));
    increasing &= i == 0 || indices[i - 1] < indices[i];
  }
  Stream out = Stream::empty(dimension);
  if (increasing) {
    out.indices.assign(indices.begin(), indices.end());
    out.values.assign(values.begin(), values.end());
    return out;
  }
  Buffer<uint64_t> scratch;
  sort_by_index(keys, static_cast<uint32_t>(std::bit_width(dimension - 1)), scratch);
  out.indices.resize(keys.size());
  out.values.resize(keys.size());
  size_t at = 0;
  for (const uint64_t key : keys) {
    const uint32_t index = index_of_key(key);
    const float value = values[order_of_key(key)];
    if (at > 0 && out.indices[at - 1] == index) {
      out.values[at - 1] += value;
    } else {
      out.indices[at] = index;
      out.values[at] = value;
      ++at;
    }
  }
  out.indices.resize(at);
  out.values.resize(at);
  return out;
}

}  // namespace millrace
