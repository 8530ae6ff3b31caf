#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/reduce/reduce.h"
#include "kernels/reduce/slice_kernels.h"
#include "kernels/stream/index_sort.h"

namespace millrace {
namespace {

// Where a slice holds an entry or more in so many indices it is scattered, which costs by the 64 indices; below that its
// entries are sorted, which costs by the entry alone. Measured with `millrace bench reduce`.
constexpr uint64_t kScatterIndicesPerEntry = 256;

// Fewer entries than this are not worth preparing the scratch for.
constexpr size_t kScatterCountMin = 256;

// Entries that are sorted together: keys and values stay in L2. More are halved by index range first, which finds the
// clusters that are worth scattering.
constexpr size_t kSortCountMax = 8192;

/// Sums sparse streams range by range, choosing the way for each.
template <typename T>
class SparseSum {
 public:
  explicit SparseSum(std::span<const StreamView<T>> streams) : dimension_(streams.front().dimension) {
    uint64_t total = 0;
    for (const StreamView<T>& stream : streams) {
      lanes_.push_back({stream.indices.data(), stream.values.data(), 0, stream.count()});
      total += stream.count();
    }
    out_ = Stream<T>::empty(dimension_);
    out_.indices.resize(std::min(total, dimension_) + kSliceOutputSlack);
    out_.values.resize(out_.indices.size());
  }

  Stream<T> run() && {
    sum_range(0, dimension_);
    out_.indices.resize(written_);
    out_.values.resize(written_);
    return std::move(out_);
  }

 private:
  /// Sums [begin, end), of which lanes_ hold exactly the entries.
  void sum_range(uint64_t begin, uint64_t end) {
    size_t count = 0;
    for (const Lane<T>& lane : lanes_) count += lane.end - lane.at;
    if (count == 0) return;
    if (count >= (end - begin) / kScatterIndicesPerEntry && (scratch_ || count >= kScatterCountMin)) {
      if (!scratch_) scratch_ = std::make_unique<SliceScratch<T>>();
      written_ +=
          sum_scattered(lanes_, begin, end, *scratch_, out_.indices.data() + written_, out_.values.data() + written_);
    } else if (count <= kSortCountMax) {
      sum_sorted(begin, end);
    } else {
      sum_halves(begin, end);
    }
  }

  void sum_halves(uint64_t begin, uint64_t end) {
    const uint64_t middle = begin + (end - begin) / 2;
    std::vector<size_t> ends;
    ends.reserve(lanes_.size());
    for (Lane<T>& lane : lanes_) {
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
    for (Lane<T>& lane : lanes_) {
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
      const T value = values_[order_of_key(key)];
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
  std::vector<Lane<T>> lanes_;
  Stream<T> out_;
  size_t written_ = 0;
  std::unique_ptr<SliceScratch<T>> scratch_;
  Buffer<uint64_t> keys_, sort_scratch_;
  Buffer<T> values_;
};

}  // namespace

template <typename T>
Result<Stream<T>> sum_many(std::span<const StreamView<T>> streams) {
  if (streams.empty()) return fail(ErrorCode::kInvalidArgument, "no streams to sum");
  const uint64_t dimension = streams.front().dimension;
  bool dense = false;
  for (const StreamView<T>& stream : streams) {
    if (stream.dimension != dimension) {
      return fail(ErrorCode::kInvalidArgument, "streams of dimension " + std::to_string(dimension) + " and " +
                                                   std::to_string(stream.dimension) + " cannot be summed");
    }
    dense |= stream.dense;
  }
  if (dense) {
    Stream<T> out;
    out.dimension = dimension;
    out.dense = true;
    out.values.resize(dimension);
    sum_into_dense(streams, out.values);
    return out;
  }
  Stream<T> sum = SparseSum<T>(streams).run();
  if (sum.count() >= dense_from_count<T>(dimension)) return to_dense(sum.view());
  return sum;
}

template Result<Stream<float>> sum_many(std::span<const StreamView<float>>);
template Result<Stream<double>> sum_many(std::span<const StreamView<double>>);

}  // namespace millrace
