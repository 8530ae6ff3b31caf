#include <array>
#include <cstring>

#include "kernels/codec/bits/bitmap_words.h"
#include "protocol/datagram/window/window_index_codecs.h"

/// First index u16, then a bit for each index from it to the last one.
namespace millrace::protocol {
namespace {

constexpr size_t kWindowBitmapHeadBytes = 2;

size_t window_bitmap_bytes_of(IndexSpan16 indices, size_t n) {
  return kWindowBitmapHeadBytes + (indices[n - 1] - indices[0] + 8u) / 8;
}

}  // namespace

uint32_t fit_bitmap(IndexSpan16 indices, WindowValueCodec values, size_t capacity) {
  return largest_fitting(indices.size(), [&](uint32_t n) {
    return *window_value_bytes(values, n) + window_bitmap_bytes_of(indices, n) <= capacity;
  });
}

size_t bitmap_bytes(IndexSpan16 indices) { return window_bitmap_bytes_of(indices, indices.size()); }

void put_bitmap(IndexSpan16 indices, std::span<uint8_t> out) {
  std::memcpy(out.data(), &indices[0], kWindowBitmapHeadBytes);
  const auto bits = out.subspan(kWindowBitmapHeadBytes);
  std::fill(bits.begin(), bits.end(), uint8_t{0});
  for (const uint16_t index : indices) {
    const uint32_t bit = index - indices[0];
    bits[bit / 8] = static_cast<uint8_t>(bits[bit / 8] | 1u << (bit % 8));
  }
}

IndexFault read_bitmap(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out) {
  if (bytes.size() <= kWindowBitmapHeadBytes) return std::unexpected(WindowFault::kTruncated);
  uint16_t first;
  std::memcpy(&first, bytes.data(), sizeof(first));
  const ByteSpan bits = bytes.subspan(kWindowBitmapHeadBytes);
  if (bits.back() == 0) return std::unexpected(WindowFault::kTrailingBytes);
  if (count_bits(bits) != out.size()) return std::unexpected(WindowFault::kWrongCount);
  std::array<uint32_t, kFragmentEntriesMax> positions;
  static_assert(kFragmentEntriesTaken + kExpandSlack <= kFragmentEntriesMax);
  expand_bits(bits, positions.data());
  if (positions[0] != 0) return std::unexpected(WindowFault::kBadParameter);
  if (first + positions[out.size() - 1] >= window_indices) return std::unexpected(WindowFault::kIndexOutOfWindow);
  for (size_t j = 0; j < out.size(); ++j) out[j] = static_cast<uint16_t>(first + positions[j]);
  return {};
}

}  // namespace millrace::protocol
