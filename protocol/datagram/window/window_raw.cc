#include <cstring>

#include "kernels/packet/window_values.h"
#include "protocol/datagram/window/window_index_codecs.h"

/// Two bytes an index.
namespace millrace::protocol {

uint32_t fit_raw(IndexSpan16 indices, WindowValueCodec values, size_t capacity) {
  return largest_fitting(indices.size(),
                         [&](uint32_t n) { return *window_value_bytes(values, n) + 2 * n <= capacity; });
}

size_t raw_bytes(IndexSpan16 indices) { return indices.size_bytes(); }

void put_raw(IndexSpan16 indices, std::span<uint8_t> out) {
  std::memcpy(out.data(), indices.data(), indices.size_bytes());
}

IndexFault read_raw(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out) {
  if (bytes.size() < out.size_bytes()) return std::unexpected(WindowFault::kTruncated);
  if (bytes.size() > out.size_bytes()) return std::unexpected(WindowFault::kTrailingBytes);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  if (!is_strictly_increasing(out)) return std::unexpected(WindowFault::kNotIncreasing);
  if (out.back() >= window_indices) return std::unexpected(WindowFault::kIndexOutOfWindow);
  return {};
}

}  // namespace millrace::protocol
