#include "kernels/codec/history/index_history.h"

#include <algorithm>
#include <bit>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/hash.h"

namespace millrace {
namespace {

constexpr uint32_t kCountMax = 8;       // of a mark
constexpr HistoryMark kNoClass = 0x80;  // of entries behind the dimension
constexpr uint32_t kClassOfFirst = 4;   // of one update in a period; each doubling of them adds one

/// The mark after one more update has the entry, by the mark.
constexpr std::array<HistoryMark, 256> kNextMark = [] {
  std::array<HistoryMark, 256> next{};
  for (uint32_t mark = 0; mark < next.size(); ++mark) {
    const uint32_t count = std::min((mark & 15u) + 1, kCountMax);
    const uint32_t reached = kClassOfFirst - 1 + static_cast<uint32_t>(std::bit_width(count));
    next[mark] = static_cast<HistoryMark>(std::max(mark >> 4, reached) << 4 | count);
  }
  return next;
}();
static_assert(kNextMark[7 << 4 | 8] == (7 << 4 | 8), "the most frequent class is the last");

constexpr uint64_t blocks_of(uint64_t dimension) { return (dimension + kHistoryBlock - 1) / kHistoryBlock; }

}  // namespace

IndexSpan changed_indices(const StreamView& update, IndexBuffer& storage) {
  if (!update.dense && std::ranges::find(update.values, 0.0F) == update.values.end()) return update.indices;
  storage.clear();
  for (size_t i = 0; i < update.values.size(); ++i) {
    if (update.values[i] != 0) storage.push_back(update.dense ? static_cast<uint32_t>(i) : update.indices[i]);
  }
  return storage;
}

IndexHistory::IndexHistory(uint64_t dimension, uint64_t position) : dimension_(dimension) {
  MILLRACE_CHECK(dimension > 0 && dimension <= kHistoryDimensionMax, dimension);
  restart(position);
}

void IndexHistory::restart(uint64_t position) {
  position_ = position;
  from_start_ = position == 0;
  whole_from_ = (position + kHistoryPeriod - 1) / kHistoryPeriod;
  digest_ = 0;
  digests_past_ = {};
  const uint64_t blocks = blocks_of(dimension_);
  marks_.assign(blocks * kHistoryBlock, kNoClass);
  std::fill_n(marks_.begin(), dimension_, HistoryMark{0});
  counts_.assign(blocks, kHistoryBlock);
  counts_.back() = dimension_ - (blocks - 1) * kHistoryBlock;
  groups_.assign((blocks + kHistoryGroupBlocks - 1) / kHistoryGroupBlocks, HistoryGroup{});
  for (uint64_t group = 0; group < groups_.size(); ++group) count_group(group);
}

void IndexHistory::advance(IndexSpan indices) {
  MILLRACE_CHECK(indices.empty() || indices.back() < dimension_, indices.back(), dimension_);
  ByteBuffer bytes;
  ByteWriter(bytes).put_array(indices);
  digest_ = hash64(ByteSpan(bytes), digest_);
  uint64_t group = 0;
  for (const uint32_t index : indices) {
    const uint64_t block = index / kHistoryBlock;
    if (block / kHistoryGroupBlocks != group) {
      count_group(group);
      group = block / kHistoryGroupBlocks;
    }
    const HistoryMark mark = marks_[index];
    const HistoryMark next = kNextMark[mark];
    marks_[index] = next;
    counts_[block] += (uint64_t{1} << 8 * (next >> 4)) - (uint64_t{1} << 8 * (mark >> 4));
  }
  count_group(group);
  ++position_;
  if (position_ % kHistoryPeriod == 0) end_period();
}

void IndexHistory::count_group(uint64_t group) {
  const uint64_t begin = group * kHistoryGroupBlocks;
  const uint64_t end = std::min<uint64_t>(begin + kHistoryGroupBlocks, counts_.size());
  HistoryLanes sum;
  for (uint64_t block = begin; block < end; ++block) sum.add(counts_[block]);
  for (uint32_t c = 0; c < kHistoryClasses; ++c) groups_[group][c] = static_cast<uint16_t>(sum.of(c));
}

void IndexHistory::end_period() {
  for (size_t i = digests_past_.size() - 1; i > 0; --i) digests_past_[i] = digests_past_[i - 1];
  digests_past_[0] = digest_;
  digest_ = 0;
  HistoryMark* const marks = marks_.data();
  for (uint64_t i = 0; i < dimension_; ++i) {
    marks[i] = static_cast<HistoryMark>(std::max<int>(marks[i] & 0xf0, 0x10) - 0x10);
  }
  for (HistoryCounts& word : counts_) word = (word >> 8) + (word & 0xff);
  for (uint64_t group = 0; group < groups_.size(); ++group) count_group(group);
}

uint64_t IndexHistory::name() const {
  MILLRACE_CHECK(complete(), position_, whole_from_);
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(dimension_);
  writer.put(position_);
  writer.put(digest_);
  for (const uint64_t digest : digests_past_) writer.put(digest);
  return hash64(ByteSpan(bytes));
}

HistoryView IndexHistory::view() const {
  return {dimension_, marks_.data(), counts_.data(), groups_.data(), counts_.size(), groups_.size()};
}

}  // namespace millrace
