#include "kernels/reduce/magnitude_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

namespace millrace {
namespace {

constexpr uint32_t kGrain = 512;  // bins: four powers of two of magnitude

void put_varint(ByteBuffer& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<uint8_t>(value | 0x80));
  out.push_back(static_cast<uint8_t>(value));
}

/// The shortest form only: one histogram has one code.
std::optional<uint64_t> get_varint(ByteReader& reader) {
  uint64_t value = 0;
  for (uint32_t shift = 0; shift < 64; shift += 7) {
    const std::optional<uint8_t> byte = reader.get<uint8_t>();
    if (!byte) return std::nullopt;
    const uint64_t low = *byte & 0x7f;
    if (shift == 63 && low > 1) return std::nullopt;
    if (shift > 0 && *byte == 0) return std::nullopt;
    value |= low << shift;
    if (*byte < 0x80) return value;
  }
  return std::nullopt;
}

}  // namespace

uint32_t MagnitudeHistogram::bin_of(float value) { return (std::bit_cast<uint32_t>(value) & 0x7fff'ffffu) >> 16; }

/// Makes room for the bins [low, high], in steps of kGrain so that it seldom happens twice.
void MagnitudeHistogram::cover(uint32_t low, uint32_t high) {
  if (!counts_.empty() && low >= first_bin_ && high < end_bin()) return;
  uint32_t first = low / kGrain * kGrain;
  uint32_t end = (high / kGrain + 1) * kGrain;
  if (!counts_.empty()) {
    first = std::min(first, first_bin_);
    end = std::max(end, end_bin());
  }
  std::vector<uint64_t> counts(end - first);
  std::ranges::copy(counts_, counts.begin() + (counts_.empty() ? 0 : first_bin_ - first));
  counts_ = std::move(counts);
  first_bin_ = first;
}

void MagnitudeHistogram::add(std::span<const float> values) {
  uint64_t* counts = counts_.data();
  uint32_t first = first_bin_;
  uint32_t size = static_cast<uint32_t>(counts_.size());
  uint64_t zeros = 0;
  for (const float value : values) {
    const uint32_t bin = bin_of(value);
    uint32_t at = bin - first;  // wraps where bin is lower
    if (at >= size || bin == 0) [[unlikely]] {
      if (bin == 0) {
        ++zeros;
        continue;
      }
      cover(bin, bin);
      counts = counts_.data();
      first = first_bin_;
      size = static_cast<uint32_t>(counts_.size());
      at = bin - first;
    }
    ++counts[at];
  }
  total_ += values.size() - zeros;
}

void MagnitudeHistogram::add(const MagnitudeHistogram& other) {
  if (other.counts_.empty()) return;
  cover(other.first_bin_, other.end_bin() - 1);
  uint64_t* into = counts_.data() + (other.first_bin_ - first_bin_);
  for (size_t at = 0; at < other.counts_.size(); ++at) into[at] += other.counts_[at];
  total_ += other.total_;
}

void MagnitudeHistogram::encode(ByteBuffer& out) const {
  uint64_t occupied = 0;
  for (const uint64_t count : counts_) occupied += count != 0;
  put_varint(out, occupied);
  uint32_t previous = 0;
  for (uint32_t at = 0; at < counts_.size(); ++at) {
    if (counts_[at] == 0) continue;
    put_varint(out, first_bin_ + at - previous);
    put_varint(out, counts_[at]);
    previous = first_bin_ + at;
  }
}

Result<MagnitudeHistogram> MagnitudeHistogram::decode(ByteSpan bytes) {
  ByteReader reader(bytes);
  const auto malformed = [](const char* what) {
    return fail(ErrorCode::kMalformed, std::string("magnitude histogram: ") + what);
  };
  const std::optional<uint64_t> occupied = get_varint(reader);
  if (!occupied || *occupied >= kBins) return malformed("the number of occupied bins is missing or impossible");
  MagnitudeHistogram histogram;
  uint64_t bin = 0;
  for (uint64_t i = 0; i < *occupied; ++i) {
    const std::optional<uint64_t> delta = get_varint(reader);
    const std::optional<uint64_t> count = get_varint(reader);
    if (!delta || !count) return malformed("the bytes end within a bin");
    if (*delta == 0 || *delta >= kBins - bin) return malformed("a bin is out of range");
    if (*count == 0 || *count > kCountMax - histogram.total_) return malformed("a count is zero or too large");
    bin += *delta;
    histogram.cover(static_cast<uint32_t>(bin), static_cast<uint32_t>(bin));
    histogram.counts_[bin - histogram.first_bin_] = *count;
    histogram.total_ += *count;
  }
  if (reader.remaining() != 0) return malformed("bytes after the last bin");
  return histogram;
}

bool MagnitudeHistogram::operator==(const MagnitudeHistogram& other) const {
  if (total_ != other.total_) return false;
  for (uint32_t bin = std::min(first_bin_, other.first_bin_); bin < std::max(end_bin(), other.end_bin()); ++bin) {
    if (count(bin) != other.count(bin)) return false;
  }
  return true;
}

HistogramThreshold histogram_threshold(const MagnitudeHistogram& histogram, uint64_t k) {
  if (k == 0) {
    // Of the values of a decoded histogram nothing is known: its highest bin, which only a NaN has, may be occupied.
    constexpr uint32_t kHighest = MagnitudeHistogram::kBins - 1;
    return {.bin = kHighest, .above = 0, .in_bin = histogram.count(kHighest), .take = 0};
  }
  HistogramThreshold cut;
  const uint64_t wanted = std::min(k, histogram.total());
  if (wanted == 0) return cut;
  uint32_t bin = histogram.end_bin() - 1;
  while (cut.above + histogram.count(bin) < wanted) cut.above += histogram.count(bin--);
  cut.bin = bin;
  cut.in_bin = histogram.count(bin);
  cut.take = wanted - cut.above;
  return cut;
}

}  // namespace millrace
