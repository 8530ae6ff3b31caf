#include <array>
#include <bit>
#include <cstring>
#include <functional>

#include "kernels/base/check.h"
#include "kernels/packet/rice_gaps.h"
#include "protocol/datagram/window/window_index_codecs.h"

/// Rice code of gaps with one parameter a fragment: first index u16, parameter u8, low bits, unary code of the
/// quotients.
namespace millrace::protocol {
namespace {

constexpr size_t kWindowGapHeadBytes = 3;
static_assert(kFragmentEntriesTaken <= kRiceCountMax && kDatagramBytesMax <= kRiceBytesMax &&
              kRiceSlack <= kWindowSlack);

size_t window_gap_bytes_of(size_t count, uint32_t shift, uint64_t quotients) {
  return kWindowGapHeadBytes + (count * shift + 7) / 8 + (count + quotients + 7) / 8;
}

/// Returns the sum of the gaps of the first n.
uint32_t gap_sum(IndexSpan16 indices, size_t n) { return static_cast<uint32_t>(indices[n - 1] - indices[0] - (n - 1)); }

/// Guesses the best parameter: where gaps are geometric, it is near log2(mean ln 2).
uint32_t guess_shift(IndexSpan16 indices, size_t n) {
  const uint32_t scaled = static_cast<uint32_t>(uint64_t{gap_sum(indices, n)} * 177 / 256 / n);  // ln 2 = 177 / 256
  return scaled == 0 ? 0 : std::min(static_cast<uint32_t>(std::bit_width(scaled)) - 1, kRiceShiftMax);
}

/// A parameter, and the sum of the quotients under it.
struct Rice {
  uint32_t shift = 0;
  uint64_t quotients = 0;
};

/// Returns the bits of the code, less those that every parameter takes.
uint64_t cost_of(IndexSpan16 indices, const Rice& rice) {
  return uint64_t{indices.size()} * rice.shift + rice.quotients;
}

/// Returns the parameter with the least cost. The cost is convex in it, so the search goes downhill from the guess. Of
/// two with the same cost it takes the lower.
Rice best_shift(IndexSpan16 indices) {
  const uint32_t guess = guess_shift(indices, indices.size());
  const std::array<uint32_t, 3> near = {guess == 0 ? 0 : guess - 1, guess, std::min(guess + 1, kRiceShiftMax)};
  const std::array<uint64_t, 3> sums = rice_quotient_sums(indices, near);
  Rice best = {guess, sums[1]};
  const auto descend = [&](Rice next, auto is_better) {
    while (is_better(cost_of(indices, next), cost_of(indices, best))) {
      best = next;
      if (best.shift == 0 || best.shift == kRiceShiftMax) break;
      next.shift = near[1] > best.shift ? best.shift - 1 : best.shift + 1;
      next.quotients = rice_quotient_sum(indices, next.shift);
    }
  };
  if (near[0] != guess) descend({near[0], sums[0]}, std::less_equal<>{});
  if (best.shift == guess && near[2] != guess) descend({near[2], sums[2]}, std::less<>{});
  return best;
}

/// Returns a number of entries that certainly fit: quotients add up to no more than the sum of the gaps, shifted.
uint32_t certain_fit(IndexSpan16 indices, WindowValueCodec values, uint32_t shift, size_t capacity) {
  return largest_fitting(indices.size(), [&](uint32_t n) {
    return *window_value_bytes(values, n) + window_gap_bytes_of(n, shift, gap_sum(indices, n) >> shift) <= capacity;
  });
}

}  // namespace

GapFit fit_gap(IndexSpan16 indices, WindowValueCodec values, size_t capacity) {
  const size_t most = std::min<size_t>(indices.size(), kFragmentEntriesTaken);
  const uint32_t guess = guess_shift(indices, most);
  uint32_t taken = certain_fit(indices, values, guess, capacity);
  const auto [shift, quotients_of_guess] = best_shift(indices.first(taken));
  uint64_t quotients = quotients_of_guess;
  if (shift != guess) {
    taken = certain_fit(indices, values, shift, capacity);
    quotients = rice_quotient_sum(indices.first(taken), shift);
  }
  for (; taken < most; ++taken) {
    const uint64_t more = quotients + ((indices[taken] - indices[taken - 1] - 1u) >> shift);
    if (*window_value_bytes(values, taken + 1) + window_gap_bytes_of(taken + 1, shift, more) > capacity) break;
    quotients = more;
  }
  return {taken, shift, window_gap_bytes_of(taken, shift, quotients)};
}

void put_gap(IndexSpan16 indices, uint32_t shift, std::span<uint8_t> out) {
  const RiceGaps code{indices[0], shift, static_cast<uint32_t>(indices.size())};
  std::array<uint8_t, kRiceBytesMax> bytes;  // the encoder writes some words behind its code
  const size_t written = rice_gaps_encode(code, indices, bytes.data());
  MILLRACE_CHECK(written + kWindowGapHeadBytes == out.size(), written, out.size());
  std::memcpy(out.data(), &indices[0], sizeof(uint16_t));
  out[2] = static_cast<uint8_t>(code.shift);
  std::memcpy(out.data() + kWindowGapHeadBytes, bytes.data(), written);
}

IndexFault read_gap(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out) {
  if (bytes.size() < kWindowGapHeadBytes) return std::unexpected(WindowFault::kTruncated);
  uint16_t first;
  std::memcpy(&first, bytes.data(), sizeof(first));
  const RiceGaps code{first, bytes[2], static_cast<uint32_t>(out.size())};
  if (code.shift > kRiceShiftMax) return std::unexpected(WindowFault::kBadParameter);
  if (bytes.size() - kWindowGapHeadBytes > kRiceBytesMax) return std::unexpected(WindowFault::kTrailingBytes);
  const auto last = rice_gaps_decode(code, bytes.subspan(kWindowGapHeadBytes), out.data());
  if (!last) return std::unexpected(WindowFault::kWrongCount);
  if (*last >= window_indices) return std::unexpected(WindowFault::kIndexOutOfWindow);
  return {};
}

}  // namespace millrace::protocol
