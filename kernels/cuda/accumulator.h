#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/check.h"
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/tail_sums.h"
#include "kernels/cuda/top_k.h"
#include "kernels/stream/stream.h"

namespace millrace::cuda {

/// Names the treatment of values that are NaN or infinite.
enum class NonFiniteValues : uint8_t {
  kRefused,  ///< nothing is added
  kLeftOut,  ///< 0 is added for each of them, and they are counted
};

/// Names the treatment of the differences between values and their code.
enum class CodeErrors : uint8_t {
  kStay,     ///< in the sum
  kDropped,  ///< counted as lost
};

/// Holds the sum of the streams that were added, without the entries that were taken out. The dense form of Accumulator
/// (kernels/accumulate) where a queue's kernels run, with the same bits.
///
/// Invariant  values add up in the order of the calls, in f32.
/// Memory     4 bytes an index in the queue's memory. Streams of the host pass through a StreamRoom.
/// Bus        crossed by entries of the host's streams, by taken entries, by copied values and by counts; the queue
///            counts the bytes.
/// Limits     dimension in [1, 2^32]. After an error of the queue every call that returns a status returns that error.
/// Threads    one at a time. The queue outlives the accumulator.
template <class Queue>
class Accumulator {
 public:
  /// The sum of nothing. Waits for no work.
  Accumulator(Queue& queue, uint64_t dimension)
      : queue_(&queue), dimension_(dimension), sum_(queue.template allocate<float>(dimension)) {
    MILLRACE_CHECK(dimension >= 1 && dimension <= kDimensionMax, dimension);
    forget();
  }

  uint64_t dimension() const { return dimension_; }
  /// Returns the sum's values [dimension], in the queue's memory.
  const float* values() const { return sum_.data(); }

  /// Adds weight * values, the product rounded first. Returns how many values were left out.
  ///
  /// values   [dimension], in the queue's memory, at any multiple of 4 bytes.
  /// Cost     kRefused: three reads and a write; kLeftOut: two reads and a write. 8 bytes over the bus. Waits for the
  ///          queue.
  /// Errors   non_finite: a value is NaN or infinite, and is refused; the sum is unchanged.
  Result<uint64_t> add(const float* values, float weight, NonFiniteValues rule) {
    auto found = queue_->template allocate<uint64_t>(1);
    auto largest = queue_->template allocate<uint32_t>(1);
    queue_->clear(found.data(), sizeof(uint64_t));
    queue_->clear(largest.data(), sizeof(uint32_t));
    const bool refuses = rule == NonFiniteValues::kRefused;
    if (refuses) enqueue_max_key(*queue_, values, dimension_, largest.data());
    enqueue_add_finite(*queue_, {.values = values,
                                 .sums = sum_.data(),
                                 .count = dimension_,
                                 .weight = weight,
                                 .largest = refuses ? largest.data() : nullptr,
                                 .left_out = refuses ? nullptr : found.data()});
    uint64_t left_out = 0;
    uint32_t key = 0;
    if (refuses) {
      queue_->download(std::span(&key, 1), static_cast<const uint32_t*>(largest.data()));
    } else {
      queue_->download(std::span(&left_out, 1), static_cast<const uint64_t*>(found.data()));
    }
    if (auto done = queue_->finish(); !done) return std::unexpected(done.error());
    if (key >= kKeyInfinity) return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to add");
    return left_out;
  }

  /// Adds factor * stream to the sum from index `begin` on, the product rounded first. Gives entries back with a factor
  /// of 1. Values are not looked at.
  ///
  /// stream   of the host, well-formed; of [begin, begin + its dimension). A dense stream adds all its values.
  /// Cost     8 bytes an entry over the bus, or 4 a value of a dense stream. Waits for the queue.
  Status add(const StreamView& stream, uint64_t begin = 0, float factor = 1) {
    MILLRACE_CHECK(begin + stream.dimension <= dimension_, begin, stream.dimension, dimension_);
    const StreamRoom<Queue> room(*queue_, stream.count());
    enqueue_add_stream(*queue_, sum_.data() + begin, stream, factor, room);
    return queue_->finish();
  }

  /// Lets scale * gradient enter by a velocity: the velocity takes the product, and the sum the shares of both
  /// (EnterByVelocity). Gradient and velocity have this dimension and this queue.
  ///
  /// Cost     three reads and two writes. Waits for the queue.
  Status enter(const Accumulator& gradient, float scale, Accumulator& velocity, const MomentumShares& shares) {
    const EnterByVelocity enter{gradient.values(), velocity.sum_.data(), sum_.data(), dimension_, shares, scale};
    queue_->launch(enter, filling_blocks());
    return queue_->finish();
  }

  /// Sets the values at the indices to 0. They differ.
  ///
  /// Cost     4 bytes an index over the bus. Waits for the queue.
  Status clear_at(IndexSpan indices) {
    if (indices.empty()) return {};
    auto positions = queue_->template allocate<uint32_t>(indices.size());
    auto values = queue_->template allocate<float>(indices.size());
    queue_->upload(positions.data(), indices);
    take(*queue_, sum_.data(), positions.data(), indices.size(), values.data());
    return queue_->finish();
  }

  /// Selects the k entries of largest magnitude, without zeros: as top_k() of kernels/cuda.
  Result<Positions<Queue>> select_top_k(uint64_t k) const {
    return top_k(*queue_, values(), dimension_, k, Zeros::kSkipped);
  }

  /// Selects the entries with |x| >= magnitude: as threshold() of kernels/cuda. More entries than the last selection
  /// had cost a second pass.
  Result<Positions<Queue>> select_at_least(float magnitude) {
    auto selected = threshold(*queue_, values(), dimension_, magnitude, dimension_, expected_);
    if (selected) expected_ = selected->count;
    return selected;
  }

  /// Takes out the entries at the positions, increasing; sparse, in the host's memory. Zeros are in their place.
  ///
  /// values   [selected.count], in the queue's memory: gets the values, for keep_errors().
  /// arrays   their memory becomes the result's: fresh memory would be paid for page by page.
  /// Cost     8 bytes an entry over the bus. Waits for the queue.
  Result<Stream> take_at(const Positions<Queue>& selected, float* values, Stream&& arrays = {}) {
    const uint64_t count = selected.count;
    Stream taken{dimension_, false, std::move(arrays.indices), std::move(arrays.values)};
    taken.indices.resize(count);
    taken.values.resize(count);
    if (count == 0) return taken;
    take(*queue_, sum_.data(), selected.positions.data(), count, values);
    queue_->download(std::span<uint32_t>(taken.indices), static_cast<const uint32_t*>(selected.positions.data()));
    queue_->download(std::span<float>(taken.values), static_cast<const float*>(values));
    if (auto done = queue_->finish(); !done) return std::unexpected(done.error());
    return taken;
  }
  Result<Stream> take_at(const Positions<Queue>& selected, Stream&& arrays = {}) {
    auto values = queue_->template allocate<float>(selected.count);
    return take_at(selected, values.data(), std::move(arrays));
  }

  /// Replaces the sum at positions by the differences between values and their code. The host codes taken values by the
  /// same rules: so the errors of that code return without crossing the bus.
  ///
  /// values   [count], those that take_at() took at these positions; nothing was added there since.
  /// code     as for take_coded().
  /// Cost     that of the code, two reads and a write of the values. Waits for the queue.
  /// Errors   those of the code; limit_exceeded: no memory. The sum is unchanged then.
  template <class Code>
  Status keep_errors(const uint32_t* positions, const float* values, uint64_t count, const Code& code) {
    if (count == 0) return {};
    auto decoded = queue_->template allocate<float>(count);
    if (Status coded = code(values, count, decoded.data()); !coded) return coded;
    queue_->launch(ScatterDifference{positions, values, decoded.data(), count, sum_.data()},
                   (count + ScatterDifference::kThreads - 1) / ScatterDifference::kThreads);
    return queue_->finish();
  }

  /// Checks that all values are finite.
  ///
  /// Cost     one read pass; 4 bytes over the bus. Waits for the queue.
  /// Errors   non_finite.
  Status check_finite() const {
    const auto key = largest_key(*queue_, values(), dimension_, "sum");
    return key ? Status() : std::unexpected(key.error());
  }

  /// Returns how many values of [begin, end) are not 0.
  ///
  /// Cost     one read pass over the range; 8 bytes over the bus. Waits for the queue.
  Result<uint64_t> count_nonzero(uint64_t begin, uint64_t end) const {
    MILLRACE_CHECK(begin < end && end <= dimension_, begin, end, dimension_);
    auto memory = queue_->template allocate<uint64_t>(1);
    queue_->clear(memory.data(), sizeof(uint64_t));
    queue_->launch(CountNonZero{values() + begin, end - begin, memory.data()}, filling_blocks());
    uint64_t found = 0;
    queue_->download(std::span(&found, 1), static_cast<const uint64_t*>(memory.data()));
    if (auto done = queue_->finish(); !done) return std::unexpected(done.error());
    return found;
  }

  /// Copies the values of [begin, end), indices local to begin, to the host's memory; sparse, without zeros, where that
  /// form is the smaller one.
  ///
  /// Cost     8 bytes an entry over the bus, or 4 an index of the range. Waits for the queue. Where there is no memory
  ///          to select the entries, the range is copied, which needs none, and the host selects them.
  Result<Stream> read_part(uint64_t begin, uint64_t end) const {
    auto entries = read_entries(begin, end);
    if (entries && !entries->dense) return entries;
    auto values = read(begin, end);
    return values && !entries ? in_smaller_form(std::move(*values)) : std::move(values);
  }

  /// Takes out the values that a code of [begin, end) decodes to. Returns the sums of the lost values: where errors
  /// stay, what f32 does not hold of them.
  ///
  /// code     code(values, n, decoded) codes n values on the queue, writes the decoded ones [n], and waits for it.
  ///          Memory that it lacks is an error of it.
  /// Cost     that of the code, three reads and two writes of the range; 32 bytes over the bus for each 2^18 values.
  /// Errors   those of the code; limit_exceeded: no memory. The sum is unchanged then.
  template <class Code>
  Result<TailSums> take_coded(uint64_t begin, uint64_t end, CodeErrors errors, const Code& code) {
    MILLRACE_CHECK(begin < end && end <= dimension_, begin, end, dimension_);
    const uint64_t n = end - begin;
    float* const sums = sum_.data() + begin;
    TailRoom<Queue> room(*queue_, n);
    auto decoded = queue_->template allocate<float>(n);
    if (Status coded = code(static_cast<const float*>(sums), n, decoded.data()); !coded) {
      return std::unexpected(coded.error());
    }
    // No memory is taken from here on.
    queue_->launch(KeepError{sums, decoded.data(), n}, filling_blocks());
    auto lost = tail_sums(*queue_, decoded.data(), n, kInfinityKey, room);
    if (!lost || errors == CodeErrors::kStay) return lost;
    const auto dropped = tail_sums(*queue_, static_cast<const float*>(sums), n, kInfinityKey, room);
    if (!dropped) return dropped;
    add_chunk(*lost, *dropped);
    forget(begin, end);
    return lost;
  }

  /// Takes all values out: a dense stream in the host's memory.
  ///
  /// Cost     4 bytes an index over the bus. Waits for the queue.
  Result<Stream> take_all() {
    auto taken = read(0, dimension_);
    if (taken) forget();
    return taken;
  }

  /// Enqueue that all values are taken out, or those of [begin, end). -0 is the sum of nothing: -0 + x is x for every
  /// x, and 0 + -0 would be 0.
  void forget() { forget(0, dimension_); }
  void forget(uint64_t begin, uint64_t end) {
    MILLRACE_CHECK(begin < end && end <= dimension_, begin, end, dimension_);
    queue_->launch(FillValue{sum_.data() + begin, end - begin, -0.0F}, filling_blocks());
  }

  /// Takes out the entries in [begin, end) that are not 0, indices local to begin; sparse, in the host's memory.
  ///
  /// Cost     4 bytes an index of the range over the bus. Waits for the queue.
  Result<Stream> take_range(uint64_t begin, uint64_t end) {
    auto range = read(begin, end);
    if (!range) return range;
    if (end - begin == dimension_) {
      forget();
    } else {
      queue_->clear(sum_.data() + begin, (end - begin) * sizeof(float));
    }
    return to_sparse(range->view());
  }

  /// Copies the values of [begin, end): a dense stream in the host's memory.
  ///
  /// Cost     4 bytes an index of the range over the bus. Waits for the queue.
  Result<Stream> read(uint64_t begin, uint64_t end) const {
    MILLRACE_CHECK(begin < end && end <= dimension_, begin, end, dimension_);
    Stream range{end - begin, true, {}, {}};
    range.values.resize(end - begin);
    queue_->download(std::span<float>(range.values), values() + begin);
    if (auto done = queue_->finish(); !done) return std::unexpected(done.error());
    return range;
  }

  /// Copies the values at the indices, in any order.
  ///
  /// Cost     8 bytes an index over the bus. Waits for the queue.
  Result<Buffer<float>> read_at(IndexSpan indices) const {
    Buffer<float> read(indices.size());
    if (indices.empty()) return read;
    auto positions = queue_->template allocate<uint32_t>(indices.size());
    auto values = queue_->template allocate<float>(indices.size());
    queue_->upload(positions.data(), indices);
    gather(*queue_, sum_.data(), positions.data(), indices.size(), values.data());
    queue_->download(std::span<float>(read), static_cast<const float*>(values.data()));
    if (auto done = queue_->finish(); !done) return std::unexpected(done.error());
    return read;
  }

  /// Replaces the values from `begin` on.
  Status write(uint64_t begin, std::span<const float> values) {
    MILLRACE_CHECK(begin + values.size() <= dimension_, begin, values.size(), dimension_);
    queue_->upload(sum_.data() + begin, values);
    return queue_->finish();
  }

  /// Returns the L2 norm. Squares add up in f64 in the order of tail_sums() of kernels/magnitude: the same bits.
  ///
  /// Cost     one read pass; a few bytes over the bus. Waits for the queue.
  /// Errors   non_finite: the sum has NaN or infinity.
  Result<double> norm() const {
    const auto sums = tail_sums(*queue_, values(), dimension_, kInfinityKey);
    if (!sums) return std::unexpected(sums.error());
    if (sums->above != 0) return fail(ErrorCode::kNonFinite, "NaN or infinity among the sums");
    return std::sqrt(sums->squares);
  }

 private:
  /// Copies the entries of [begin, end) that are not 0, indices local to begin. Returns an empty dense stream where the
  /// dense form is not larger.
  Result<Stream> read_entries(uint64_t begin, uint64_t end) const {
    const uint64_t n = end - begin;
    const auto found = count_nonzero(begin, end);
    if (!found) return std::unexpected(found.error());
    if (*found >= dense_from_count(n)) return Stream{n, true, {}, {}};
    Stream entries = Stream::empty(n);
    if (*found == 0) return entries;
    constexpr float kLeast = std::numeric_limits<float>::denorm_min();
    const auto selected = threshold(*queue_, values() + begin, n, kLeast, n, *found);
    if (!selected) return std::unexpected(selected.error());
    entries.indices.resize(selected->count);
    entries.values.resize(selected->count);
    auto values = queue_->template allocate<float>(selected->count);
    gather(*queue_, sum_.data() + begin, selected->positions.data(), selected->count, values.data());
    queue_->download(std::span<uint32_t>(entries.indices), static_cast<const uint32_t*>(selected->positions.data()));
    queue_->download(std::span<float>(entries.values), static_cast<const float*>(values.data()));
    if (auto done = queue_->finish(); !done) return std::unexpected(done.error());
    return entries;
  }

  /// Returns the blocks of a kernel that loops over the sum.
  uint64_t filling_blocks() const {
    static_assert(FillValue::kThreads == EnterByVelocity::kThreads);
    static_assert(FillValue::kThreads == CountNonZero::kThreads && FillValue::kThreads == KeepError::kThreads);
    const uint64_t blocks = (dimension_ + FillValue::kThreads - 1) / FillValue::kThreads;
    return std::min<uint64_t>(blocks, queue_->filling_blocks(FillValue::kThreads));
  }

  Queue* queue_;
  uint64_t dimension_;
  MemoryOf<Queue, float> sum_;
  uint64_t expected_ = 0;  ///< entries of the last selection by magnitude
};

}  // namespace millrace::cuda
