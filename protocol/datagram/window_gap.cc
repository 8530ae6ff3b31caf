#include <bit>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/window/rice_gaps.h"
#include "protocol/datagram/window_index.h"

/// Rice code of gaps with one parameter a fragment: first index u16, parameter u8, low bits, unary code of the quotients.
namespace millrace::protocol {
namespace {

constexpr size_t kHeadBytes = 3;
static_assert(kFragmentEntriesTaken <= kRiceCountMax && kDatagramBytesMax <= kRiceBytesMax &&
              kRiceSlack <= kWindowSlack);

size_t bytes_of(size_t count, uint32_t shift, uint64_t quotients) {
  return kHeadBytes + (count * shift + 7) / 8 + (count + quotients + 7) / 8;
}

/// Sum of the gaps of the first n.
uint32_t gap_sum(IndexSpan16 indices, size_t n) { return static_cast<uint32_t>(indices[n - 1] - indices[0] - (n - 1)); }

/// Where gaps are geometric the best parameter is near log2(mean ln 2).
uint32_t guess_shift(IndexSpan16 indices, size_t n) {
  const uint32_t scaled = static_cast<uint32_t>(uint64_t{gap_sum(indices, n)} * 177 / 256 / n);  // ln 2 = 177 / 256
  return scaled == 0 ? 0 : std::min(static_cast<uint32_t>(std::bit_width(scaled)) - 1, kRiceShiftMax);
}

/// Bits less those that every parameter takes.
uint64_t cost_of(IndexSpan16 indices, uint32_t shift) {
  return uint64_t{indices.size()} * shift + rice_quotient_sum(indices, shift);
}

/// The parameter with the least cost, which is convex in it: downhill from the guess.
uint32_t best_shift(IndexSpan16 indices) {
  const uint32_t guess = guess_shift(indices, indices.size());
  uint32_t shift = guess;
  uint64_t cost = cost_of(indices, shift);
  while (shift > 0) {
    const uint64_t below = cost_of(indices, shift - 1);
    if (below > cost) break;
    cost = below;
    --shift;
  }
  if (shift != guess) return shift;
  while (shift < kRiceShiftMax) {
    const uint64_t above = cost_of(indices, shift + 1);
    if (above >= cost) break;
    cost = above;
    ++shift;
  }
  return shift;
}

/// As many as certainly fit: quotients add up to no more than the sum of the gaps, shifted.
uint32_t certain_fit(IndexSpan16 indices, WindowValueCodec values, uint32_t shift, size_t capacity) {
  return largest_fitting(indices.size(), [&](uint32_t n) {
    return *window_value_bytes(values, n) + bytes_of(n, shift, gap_sum(indices, n) >> shift) <= capacity;
  });
}

}  // namespace

GapFit fit_gap(IndexSpan16 indices, WindowValueCodec values, size_t capacity) {
  const size_t most = std::min<size_t>(indices.size(), kFragmentEntriesTaken);
  uint32_t taken = certain_fit(indices, values, guess_shift(indices, most), capacity);
  const uint32_t shift = best_shift(indices.first(taken));
  taken = certain_fit(indices, values, shift, capacity);
  uint64_t quotients = rice_quotient_sum(indices.first(taken), shift);
  for (; taken < most; ++taken) {
    const uint64_t more = quotients + ((indices[taken] - indices[taken - 1] - 1u) >> shift);
    if (*window_value_bytes(values, taken + 1) + bytes_of(taken + 1, shift, more) > capacity) break;
    quotients = more;
  }
  return {taken, shift, bytes_of(taken, shift, quotients)};
}

void put_gap(IndexSpan16 indices, uint32_t shift, std::span<uint8_t> out) {
  const RiceGaps code{indices[0], shift, static_cast<uint32_t>(indices.size())};
  std::array<uint8_t, kRiceBytesMax> bytes;  // the encoder writes some words behind its code
  const size_t written = rice_gaps_encode(code, indices, bytes.data());
  MILLRACE_CHECK(written + kHeadBytes == out.size(), written, out.size());
  std::memcpy(out.data(), &indices[0], sizeof(uint16_t));
  out[2] = static_cast<uint8_t>(code.shift);
  std::memcpy(out.data() + kHeadBytes, bytes.data(), written);
}

IndexFault read_gap(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out) {
  if (bytes.size() < kHeadBytes) return std::unexpected(WindowFault::kTruncated);
  uint16_t first;
  std::memcpy(&first, bytes.data(), sizeof(first));
  const RiceGaps code{first, bytes[2], static_cast<uint32_t>(out.size())};
  if (code.shift > kRiceShiftMax) return std::unexpected(WindowFault::kBadParameter);
  if (bytes.size() - kHeadBytes > kRiceBytesMax) return std::unexpected(WindowFault::kTrailingBytes);
  const auto last = rice_gaps_decode(code, bytes.subspan(kHeadBytes), out.data());
  if (!last) return std::unexpected(WindowFault::kWrongCount);
  if (*last >= window_indices) return std::unexpected(WindowFault::kIndexOutOfWindow);
  return {};
}

}  // namespace millrace::protocol
