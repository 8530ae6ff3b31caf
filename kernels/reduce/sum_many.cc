#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/reduce/merge_two.h"
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/slice_kernels.h"
#include "kernels/reduce/slice_sum_at_least.h"
#include "kernels/reduce/threshold_scan.h"
#include "kernels/stream/index_sort.h"

namespace millrace {
namespace {

// Where a slice holds an entry or more in this number of indices it is scattered, which costs by the 64 indices. Below
// that its entries are sorted, which costs by the entry alone. Measured with `millrace-bench reduce`.
constexpr uint64_t kScatterIndicesPerEntry = 256;

// Fewer entries than this are not worth preparing the scratch for.
constexpr size_t kScatterCountMin = 256;

// Entries that are sorted together: keys and values stay in L2. More are halved by index range first, which finds the
// clusters that are worth scattering.
constexpr size_t kSortCountMax = 8192;

// Sums filtered at a time: their positions stay in a first-level cache.
constexpr size_t kFilterBlock = 2048;

/// Calls take(begin, positions) with the positions, from `begin` on, of the values of magnitude `edge` and more, in
/// order.
template <typename Take>
void for_each_at_least(std::span<const float> values, float edge, Take take) {
  std::array<uint32_t, kFilterBlock + kThresholdScanSlack> positions;
  for (size_t begin = 0; begin < values.size(); begin += kFilterBlock) {
    const size_t block = std::min(kFilterBlock, values.size() - begin);
    const size_t found =
        scan_at_least(values.data() + begin, block, edge, static_cast<uint32_t>(begin), positions.data());
    take(std::span(positions).first(found));
  }
}

/// Keeps the entries of magnitude `edge` and more. Returns how many.
size_t keep_at_least(uint32_t* indices, float* values, size_t count, float edge) {
  size_t kept = 0;
  for_each_at_least({values, count}, edge, [&](std::span<const uint32_t> positions) {
    for (const uint32_t position : positions) {
      indices[kept] = indices[position];
      values[kept++] = values[position];
    }
  });
  return kept;
}

/// Sums sparse streams range by range, choosing the way for each. With an edge, of the sums only those of that
/// magnitude and more are kept.
class SparseSum {
 public:
  SparseSum(std::span<const StreamView> streams, std::optional<float> edge)
      : dimension_(streams.front().dimension), edge_(edge) {
    uint64_t total = 0;
    for (const StreamView& stream : streams) {
      lanes_.push_back({stream.indices.data(), stream.values.data(), 0, stream.count()});
      total += stream.count();
    }
    out_ = Stream::empty(dimension_);
    out_.indices.resize(std::min(total, dimension_) + kSliceOutputSlack);
    out_.values.resize(out_.indices.size());
  }

  Stream run() && {
    sum_range(0, dimension_);
    out_.indices.resize(written_);
    out_.values.resize(written_);
    return std::move(out_);
  }

 private:
  /// Sums [begin, end), of which lanes_ hold exactly the entries.
  void sum_range(uint64_t begin, uint64_t end) {
    size_t count = 0;
    for (const Lane& lane : lanes_) count += lane.end - lane.at;
    if (count == 0) return;
    if (count >= (end - begin) / kScatterIndicesPerEntry && (scratch_ || count >= kScatterCountMin)) {
      scatter(begin, end);
    } else if (count <= kSortCountMax) {
      const size_t first = written_;
      sum_sorted(begin, end);
      keep_large_from(first);
    } else {
      sum_halves(begin, end);
    }
  }

  void scatter(uint64_t begin, uint64_t end) {
    if (!scratch_) scratch_ = std::make_unique<SliceScratch>();
    uint32_t* const indices = out_.indices.data() + written_;
    float* const values = out_.values.data() + written_;
    written_ += edge_ ? sum_scattered_at_least(lanes_, begin, end, *scratch_, *edge_, indices, values)
                      : sum_scattered(lanes_, begin, end, *scratch_, indices, values);
  }

  /// Of the sums written from `first` on.
  void keep_large_from(size_t first) {
    if (!edge_) return;
    written_ = first + keep_at_least(out_.indices.data() + first, out_.values.data() + first, written_ - first, *edge_);
  }

  void sum_halves(uint64_t begin, uint64_t end) {
    const uint64_t middle = begin + (end - begin) / 2;
    std::vector<size_t> ends;
    ends.reserve(lanes_.size());
    for (Lane& lane : lanes_) {
      ends.push_back(lane.end);
      const uint32_t* const cut = std::lower_bound(lane.index + lane.at, lane.index + lane.end, middle);
      lane.end = static_cast<size_t>(cut - lane.index);
    }
    sum_range(begin, middle);
    for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i].end = ends[i];
    sum_range(middle, end);
  }

  /// Few entries in a wide range: gathered in the order of the streams, sorted by index, added up.
  void sum_sorted(uint64_t begin, uint64_t end) {
    keys_.clear();
    values_.clear();
    const uint32_t base = static_cast<uint32_t>(begin);
    for (Lane& lane : lanes_) {
      for (size_t at = lane.at; at < lane.end; ++at) {
        keys_.push_back(index_key(lane.index[at] - base, static_cast<uint32_t>(keys_.size())));
      }
      values_.insert(values_.end(), lane.value + lane.at, lane.value + lane.end);
      lane.at = lane.end;
    }
    sort_by_index(keys_, static_cast<uint32_t>(std::bit_width(end - begin - 1)), sort_scratch_);
    const size_t first = written_;
    for (const uint64_t key : keys_) {
      const uint32_t index = base + index_of_key(key);
      const float value = values_[order_of_key(key)];
      if (written_ > first && out_.indices[written_ - 1] == index) {
        out_.values[written_ - 1] += value;
      } else {
        out_.indices[written_] = index;
        out_.values[written_] = value;
        ++written_;
      }
    }
  }

  uint64_t dimension_;
  std::optional<float> edge_;
  std::vector<Lane> lanes_;
  Stream out_;
  size_t written_ = 0;
  std::unique_ptr<SliceScratch> scratch_;
  Buffer<uint64_t> keys_, sort_scratch_;
  Buffer<float> values_;
};

Status check_dimensions(std::span<const StreamView> streams) {
  if (streams.empty()) return fail(ErrorCode::kInvalidArgument, "no streams to sum");
  const uint64_t dimension = streams.front().dimension;
  for (const StreamView& stream : streams) {
    if (stream.dimension == dimension) continue;
    return fail(ErrorCode::kInvalidArgument, "streams of dimension " + std::to_string(dimension) + " and " +
                                                 std::to_string(stream.dimension) + " cannot be summed");
  }
  return {};
}

bool any_dense(std::span<const StreamView> streams) {
  return std::ranges::any_of(streams, [](const StreamView& stream) { return stream.dense; });
}

Stream dense_sum(std::span<const StreamView> streams) {
  Stream out;
  out.dimension = streams.front().dimension;
  out.dense = true;
  out.values.resize(out.dimension);
  sum_into_dense(streams, out.values);
  return out;
}

}  // namespace

Result<Stream> sum_many(std::span<const StreamView> streams) {
  if (auto equal = check_dimensions(streams); !equal) return std::unexpected(equal.error());
  if (any_dense(streams)) return dense_sum(streams);
  if (streams.size() == 2 && is_merged(streams[0], streams[1])) return merge_two(streams[0], streams[1]);
  Stream sum = SparseSum(streams, std::nullopt).run();
  if (sum.count() >= dense_from_count(sum.dimension)) return to_dense(sum.view());
  return sum;
}

Result<Stream> sum_at_least(std::span<const StreamView> streams, float edge) {
  MILLRACE_CHECK(edge > 0, edge);
  if (auto equal = check_dimensions(streams); !equal) return std::unexpected(equal.error());
  if (any_dense(streams)) return entries_at_least(dense_sum(streams).view(), edge);
  return SparseSum(streams, edge).run();
}

Stream entries_at_least(const StreamView& stream, float edge) {
  Stream out = Stream::empty(stream.dimension);
  for_each_at_least(stream.values, edge, [&](std::span<const uint32_t> positions) {
    const size_t first = out.values.size();
    out.indices.resize(first + positions.size());
    out.values.resize(first + positions.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      out.indices[first + i] = stream.dense ? positions[i] : stream.indices[positions[i]];
      out.values[first + i] = stream.values[positions[i]];
    }
  });
  return out;
}

}  // namespace millrace
