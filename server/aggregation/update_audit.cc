#include "server/aggregation/update_audit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/reduce/audit_sums.h"

namespace millrace::server {
namespace {

constexpr uint64_t kBlock = uint64_t{1} << 17;  ///< indices that are compared together: 16 KiB of bits

using Bits = std::array<uint32_t, kBlock / 32>;

/// Walks a stream block by block; both it and the blocks ascend.
class Walk {
 public:
  explicit Walk(const StreamView& stream) : stream_(&stream) {}

  bool done() const { return at_ >= stream_->values.size(); }
  uint64_t index() const { return stream_->dense ? at_ : stream_->indices[at_]; }

  /// Returns the positions of the entries in [begin, end), and moves the walk behind them.
  std::pair<size_t, size_t> take(uint64_t begin, uint64_t end) {
    const size_t first = find(begin);
    at_ = first;
    at_ = find(end);
    return {first, at_};
  }

 private:
  /// Returns the first position from here on whose index is `index` or more.
  size_t find(uint64_t index) const {
    const size_t count = stream_->values.size();
    if (stream_->dense) return std::clamp<size_t>(index, at_, count);
    if (at_ == count || stream_->indices[at_] >= index) return at_;  // the next block begins where this one ends
    size_t step = 64;
    while (at_ + step < count && stream_->indices[at_ + step] < index) step *= 2;
    const auto from = stream_->indices.begin();
    return static_cast<size_t>(std::lower_bound(from + static_cast<ptrdiff_t>(at_ + step / 2 * (step > 64 ? 1 : 0)),
                                                from + static_cast<ptrdiff_t>(std::min(at_ + step, count)), index) -
                               from);
  }

  const StreamView* stream_;
  size_t at_ = 0;
};

/// Sums the entries of [first, last) whose bit is set.
Mass mass_of_marked(const StreamView& stream, size_t first, size_t last, uint64_t begin, const Bits& bits) {
  if (!stream.dense) {
    return mass_where(stream.indices.subspan(first, last - first), stream.values.subspan(first, last - first),
                      static_cast<uint32_t>(begin), bits);
  }
  LongSum sum;
  double magnitude = 0;
  for (size_t i = first; i < last; ++i) {
    const uint64_t local = i - begin;
    const bool marked = (bits[local / 32] >> (local % 32) & 1) != 0;
    const double value = marked ? static_cast<double>(stream.values[i]) : 0.0;
    sum.add(value);
    magnitude += std::abs(value);
  }
  return {sum.value(), magnitude};
}

class Auditor {
 public:
  Auditor(const StreamView& carried, std::span<const float> sums, std::span<const StreamView> contributions,
          Extent extent)
      : carried_(carried),
        sums_(sums),
        contributions_(contributions),
        everything_(extent == Extent::kEverything || carried.dense),
        walk_(carried),
        totals_(contributions.size()) {
    for (const StreamView& one : contributions) walks_.emplace_back(one);
  }

  UpdateAudit run() {
    for (uint64_t next = next_index(); next != kNone; next = next_index()) block(next / kBlock * kBlock);
    UpdateAudit audit;
    for (const LongSum& total : totals_) audit.carried.push_back(total.value());
    audit.imbalance = imbalance_;
    return audit;
  }

 private:
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

  /// Returns the next index at which an entry is left.
  uint64_t next_index() const {
    uint64_t next = walk_.done() ? kNone : walk_.index();
    if (!everything_) return next;
    for (const Walk& walk : walks_) next = walk.done() ? next : std::min(next, walk.index());
    return next;
  }

  void block(uint64_t begin) {
    const uint64_t end = begin + kBlock;
    const auto [first, last] = walk_.take(begin, end);
    Mass left = mass_of(sums_.subspan(first, last - first));
    if (!everything_) mark(first, last, begin);
    double magnitude = 0;
    for (size_t at = 0; at < contributions_.size(); ++at) {
      const auto [from, to] = walks_[at].take(begin, end);
      const Mass mass = everything_ ? mass_of(contributions_[at].values.subspan(from, to - from))
                                    : mass_of_marked(contributions_[at], from, to, begin, bits_);
      totals_[at].add(mass.sum);
      left.sum -= mass.sum;
      magnitude += mass.magnitude;
    }
    if (!everything_) clear(first, last, begin);
    constexpr double kUnit = std::numeric_limits<float>::epsilon() / 2;
    constexpr double kSumming = 2 * kMassError;  // and the block's own sum of sums
    const double bound =
        (static_cast<double>(contributions_.size()) * kUnit + kSumming) * magnitude + kSumming * left.magnitude;
    if (!(std::abs(left.sum) <= bound)) imbalance_ += std::abs(left.sum);
  }

  void mark(size_t first, size_t last, uint64_t begin) {
    for (size_t i = first; i < last; ++i) {
      const uint64_t local = carried_.indices[i] - begin;
      bits_[local / 32] |= uint32_t{1} << (local % 32);
    }
  }
  void clear(size_t first, size_t last, uint64_t begin) {
    for (size_t i = first; i < last; ++i) bits_[(carried_.indices[i] - begin) / 32] = 0;
  }

  const StreamView& carried_;
  std::span<const float> sums_;
  std::span<const StreamView> contributions_;
  bool everything_;
  Walk walk_;
  std::vector<Walk> walks_;
  std::vector<LongSum> totals_;
  double imbalance_ = 0;
  Bits bits_{};
};

}  // namespace

UpdateAudit audit_update(const StreamView& carried, std::span<const float> sums,
                         std::span<const StreamView> contributions, Extent extent) {
  MILLRACE_CHECK(sums.size() == carried.count(), sums.size(), carried.count());
  return Auditor(carried, sums, contributions, extent).run();
}

}  // namespace millrace::server
