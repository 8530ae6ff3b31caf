#include <array>
#include <cmath>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/codec/bloom/bloom_filter.h"
#include "protocol/datagram/window/window_index_codecs.h"

/// A Bloom filter of the fragment's own range, policy P0 [DeepReduce21, 4]. Its bytes: first index u16, last less first
/// u16, number of hash functions u8, 0 u8. The filter follows in words of 32 bits. The entries are all indices of the
/// range that the filter knows. The hash functions are drawn from the first four bytes: no other seed travels.
///
/// The paper sends the gradient's values at false positives. Here an encoder gets the selected entries alone. So it
/// marks the values of the others as holes, and they are dropped. Nothing is lost, and nothing is gained by them. At 1
/// % of uniform indices the code is about as long as raw; it exists so that the paper's method runs over the switch
/// too. Users should prefer gap.
namespace millrace::protocol {
namespace {

constexpr size_t kWindowBloomHeadBytes = 6;

struct Head {
  uint16_t first = 0;
  uint16_t reach = 0;  // last - first
  uint8_t probes = 0;
  uint8_t reserved = 0;
};
static_assert(sizeof(Head) == kWindowBloomHeadBytes);

constexpr size_t kWordsMax = kDatagramBytesMax / sizeof(uint32_t);

BloomHashes hashes_of(const Head& head, size_t words) {
  const uint64_t seed = head.first | uint64_t{head.reach} << 16;
  return BloomHashes::from(seed, static_cast<uint32_t>(words * 32), head.probes);
}

/// Writes the indices that the filter knows to `out`, at most out.size(). Returns how many it knows; out.size() + 1:
/// more than that.
size_t scan(const Head& head, std::span<const uint32_t> words, std::span<uint16_t> out) {
  const BloomHashes hashes = hashes_of(head, words.size());
  std::array<uint32_t, kBloomStrip + kBloomScanSlack> found;
  size_t total = 0;
  const uint32_t range = head.reach + 1u;
  for (uint32_t begin = 0; begin < range; begin += kBloomStrip) {
    const size_t some = bloom_scan(hashes, words, begin, std::min<size_t>(kBloomStrip, range - begin), found.data());
    if (some > out.size() - total) return out.size() + 1;
    for (size_t j = 0; j < some; ++j) out[total + j] = static_cast<uint16_t>(head.first + found[j]);
    total += some;
  }
  return total;
}

/// Returns the rate at which the filter and the false positives' values together take the fewest bits. There the
/// derivative of -n log2(rate) / ln 2 + rate others bits is 0.
double rate_of(double count, double others, WindowValueCodec values) {
  const double value_bits = std::max(1.0, static_cast<double>(*window_value_bytes(values, 64)) / 8);
  const double rate = count / (std::log(2.0) * std::log(2.0) * std::max(1.0, others) * value_bits);
  return std::clamp(rate, 1e-6, 0.5);
}

BloomShape shape_of(IndexSpan16 indices) {
  const auto count = static_cast<double>(indices.size());
  const double others = indices.back() - indices.front() + 1.0 - count;
  // The values' share does not depend on the codec by much: half of the most bits that they have.
  return BloomShape::optimal(indices.size(), rate_of(count, others, WindowValueCodec::kFixed16));
}

bool fits(size_t positives, const BloomShape& shape, WindowValueCodec values, size_t capacity) {
  return *window_value_bytes(values, positives) + kWindowBloomHeadBytes + shape.bits / 8 <= capacity;
}

}  // namespace

BloomTrim trim_bloom(IndexSpan16 indices, WindowValueCodec values, size_t capacity, std::span<uint16_t> known,
                     std::span<uint8_t> out) {
  // A first guess without false positives; each that turns out too long is followed by a shorter one.
  uint32_t taken = largest_fitting(indices.size(),
                                   [&](uint32_t n) { return fits(n, shape_of(indices.first(n)), values, capacity); });
  std::array<uint32_t, kWordsMax> words;
  for (;; taken -= std::min(taken - 1, taken / 16 + 1)) {
    const IndexSpan16 some = indices.first(taken);
    const BloomShape shape = shape_of(some);
    if (shape.bits / 32 > words.size()) continue;
    const Head head{some.front(), static_cast<uint16_t>(some.back() - some.front()),
                    static_cast<uint8_t>(shape.probes)};
    const auto filter = std::span(words).first(shape.bits / 32);
    std::fill(filter.begin(), filter.end(), 0);
    const BloomHashes hashes = hashes_of(head, filter.size());
    for (const uint16_t index : some) {
      for (uint32_t p = 0; p < shape.probes; ++p) {
        const uint32_t bit = hashes.bit(index - uint32_t{head.first}, p);
        filter[bit / 32] |= uint32_t{1} << (bit % 32);
      }
    }
    const size_t positives = scan(head, filter, known.first(kFragmentEntriesTaken));
    if (positives <= kFragmentEntriesTaken && fits(positives, shape, values, capacity)) {
      std::memcpy(out.data(), &head, kWindowBloomHeadBytes);
      std::memcpy(out.data() + kWindowBloomHeadBytes, filter.data(), filter.size_bytes());
      return {taken, static_cast<uint32_t>(positives), kWindowBloomHeadBytes + filter.size_bytes()};
    }
    MILLRACE_CHECK(taken > 1, positives, capacity);  // one index is the whole of its range
  }
}

IndexFault read_bloom(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out) {
  if (bytes.size() < kWindowBloomHeadBytes + sizeof(uint32_t)) return std::unexpected(WindowFault::kTruncated);
  Head head;
  std::memcpy(&head, bytes.data(), kWindowBloomHeadBytes);
  const ByteSpan filter = bytes.subspan(kWindowBloomHeadBytes);
  if (filter.size() % sizeof(uint32_t) != 0) return std::unexpected(WindowFault::kTrailingBytes);
  if (head.probes == 0 || head.probes > kBloomProbesMax || head.reserved != 0 || filter.size() > kDatagramBytesMax) {
    return std::unexpected(WindowFault::kBadParameter);
  }
  if (uint32_t{head.first} + head.reach >= window_indices) return std::unexpected(WindowFault::kIndexOutOfWindow);
  std::array<uint32_t, kWordsMax> words;
  std::memcpy(words.data(), filter.data(), filter.size());
  if (scan(head, std::span(words).first(filter.size() / sizeof(uint32_t)), out) != out.size()) {
    return std::unexpected(WindowFault::kWrongCount);
  }
  return {};
}

}  // namespace millrace::protocol
