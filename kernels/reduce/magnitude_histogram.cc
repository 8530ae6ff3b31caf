#include "kernels/reduce/magnitude_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

namespace millrace {
namespace {

constexpr uint32_t kGrain = 512;  // bins: four powers of two of magnitude

/// Below as many values, sorting their bins takes less time than counting over the range of the bins.
constexpr size_t kSortedBelow = 256;

constexpr size_t kBinBytesMin = 2;  // of a code

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

/// Counts in an array of the bins between the lowest and the highest one: for the time of one call.
class MagnitudeHistogram::DenseCounts {
 public:
  void add(std::span<const float> values) {
    uint64_t* counts = counts_.data();
    uint32_t first = first_;
    uint32_t size = static_cast<uint32_t>(counts_.size());
    for (const float value : values) {
      const uint32_t bin = bin_of(value);
      uint32_t at = bin - first;  // wraps where bin is lower
      if (at >= size || bin == 0) [[unlikely]] {
        if (bin == 0) continue;
        cover(bin, bin);
        counts = counts_.data();
        first = first_;
        size = static_cast<uint32_t>(counts_.size());
        at = bin - first;
      }
      ++counts[at];
    }
  }

  void add(std::span<const Bin> bins) {
    if (bins.empty()) return;
    cover(bins.front().bin, bins.back().bin);
    for (const Bin& one : bins) counts_[one.bin - first_] += one.count;
  }

  std::vector<Bin> occupied() const {
    std::vector<Bin> bins;
    bins.reserve(counts_.size() - static_cast<size_t>(std::ranges::count(counts_, uint64_t{0})));
    for (uint32_t at = 0; at < counts_.size(); ++at) {
      if (counts_[at] != 0) bins.push_back({first_ + at, counts_[at]});
    }
    return bins;
  }

 private:
  /// Makes room for the bins [low, high], in steps of kGrain so that it seldom happens twice.
  void cover(uint32_t low, uint32_t high) {
    const uint32_t end_before = first_ + static_cast<uint32_t>(counts_.size());
    if (!counts_.empty() && low >= first_ && high < end_before) return;
    uint32_t first = low / kGrain * kGrain;
    uint32_t end = (high / kGrain + 1) * kGrain;
    if (!counts_.empty()) {
      first = std::min(first, first_);
      end = std::max(end, end_before);
    }
    std::vector<uint64_t> counts(end - first);
    std::ranges::copy(counts_, counts.begin() + (counts_.empty() ? 0 : first_ - first));
    counts_ = std::move(counts);
    first_ = first;
  }

  std::vector<uint64_t> counts_;  ///< of the bins from first_: gradients occupy a few thousand of the 32,768
  uint32_t first_ = 0;
};

uint64_t MagnitudeHistogram::count(uint32_t bin) const {
  const auto at = std::ranges::lower_bound(bins_, bin, {}, &Bin::bin);
  return at != bins_.end() && at->bin == bin ? at->count : 0;
}

void MagnitudeHistogram::add(std::span<const float> values) {
  MagnitudeHistogram counted;
  if (values.size() < kSortedBelow) {
    std::vector<uint32_t> sorted(values.size());
    std::ranges::transform(values, sorted.begin(), bin_of);
    std::ranges::sort(sorted);
    for (const uint32_t bin : sorted) {
      if (bin == 0) continue;
      if (counted.bins_.empty() || counted.bins_.back().bin != bin) counted.bins_.push_back({bin, 0});
      ++counted.bins_.back().count;
    }
    counted.bins_.shrink_to_fit();
  } else {
    DenseCounts counts;
    counts.add(values);
    counted.bins_ = counts.occupied();
  }
  for (const Bin& one : counted.bins_) counted.total_ += one.count;
  add(counted);
}

void MagnitudeHistogram::add(const MagnitudeHistogram& other) {
  if (bins_.empty()) {
    *this = other;
    return;
  }
  if (other.bins_.empty()) return;
  DenseCounts counts;
  counts.add(bins_);
  counts.add(other.bins_);
  bins_ = counts.occupied();
  total_ += other.total_;
}

void MagnitudeHistogram::add(std::span<const std::shared_ptr<const MagnitudeHistogram>> others) {
  DenseCounts counts;
  counts.add(bins_);
  for (const auto& other : others) {
    counts.add(other->bins_);
    total_ += other->total_;
  }
  bins_ = counts.occupied();
}

void MagnitudeHistogram::encode(ByteBuffer& out) const {
  put_varint(out, bins_.size());
  uint32_t previous = 0;
  for (const Bin& one : bins_) {
    put_varint(out, one.bin - previous);
    put_varint(out, one.count);
    previous = one.bin;
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
  histogram.bins_.reserve(std::min<uint64_t>(*occupied, reader.remaining() / kBinBytesMin));
  uint64_t bin = 0;
  for (uint64_t i = 0; i < *occupied; ++i) {
    const std::optional<uint64_t> delta = get_varint(reader);
    const std::optional<uint64_t> count = get_varint(reader);
    if (!delta || !count) return malformed("the bytes end within a bin");
    if (*delta == 0 || *delta >= kBins - bin) return malformed("a bin is out of range");
    if (*count == 0 || *count > kCountMax - histogram.total_) return malformed("a count is zero or too large");
    bin += *delta;
    histogram.bins_.push_back({static_cast<uint32_t>(bin), *count});
    histogram.total_ += *count;
  }
  if (reader.remaining() != 0) return malformed("bytes after the last bin");
  return histogram;
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
  auto at = histogram.bins().rbegin();
  while (cut.above + at->count < wanted) cut.above += at++->count;
  cut.bin = at->bin;
  cut.in_bin = at->count;
  cut.take = wanted - cut.above;
  return cut;
}

}  // namespace millrace
