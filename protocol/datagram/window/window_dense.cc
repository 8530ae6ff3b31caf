#include <cstring>
#include <numeric>

#include "protocol/datagram/window/window_index_codecs.h"

/// The first index u16: entries are all indices from it on, less those whose value is marked as a hole.
namespace millrace::protocol {

uint32_t dense_run(IndexSpan16 indices) { return indices.back() - indices.front() + 1u; }

bool fits_dense(IndexSpan16 indices, WindowValueCodec values, size_t capacity) {
  const uint32_t run = dense_run(indices);
  if (values == WindowValueCodec::kNone && run != indices.size()) return false;  // nothing could mark a hole
  return run <= kFragmentEntriesTaken && *window_value_bytes(values, run) + kDenseBytes <= capacity;
}

uint32_t fit_dense(IndexSpan16 indices, WindowValueCodec values, size_t capacity) {
  return largest_fitting(indices.size(), [&](uint32_t n) { return fits_dense(indices.first(n), values, capacity); });
}

void put_dense(IndexSpan16 indices, std::span<uint8_t> out) { std::memcpy(out.data(), &indices[0], kDenseBytes); }

IndexFault read_dense(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out) {
  if (bytes.size() < kDenseBytes) return std::unexpected(WindowFault::kTruncated);
  if (bytes.size() > kDenseBytes) return std::unexpected(WindowFault::kTrailingBytes);
  uint16_t first;
  std::memcpy(&first, bytes.data(), sizeof(first));
  if (first + out.size() > window_indices) return std::unexpected(WindowFault::kIndexOutOfWindow);
  std::iota(out.begin(), out.end(), first);
  return {};
}

}  // namespace millrace::protocol
