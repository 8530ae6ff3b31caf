#include "kernels/accumulate/accumulator.h"

#include <algorithm>

#include "kernels/accumulate/add_and_collect.h"
#include "kernels/base/check.h"
#include "kernels/magnitude/value_chunks.h"
#include "kernels/reduce/reduce.h"
#include "kernels/stream/drop_zeros.h"

namespace millrace {
namespace {

/// Entries that a thread takes out at a time: each is a cache miss.
constexpr size_t kTakenChunk = size_t{1} << 14;
constexpr size_t kTakenPrefetchAhead = 64;

/// Moves the entries [from, from + count) to `to`, towards the front.
void move_down(Stream& stream, size_t from, size_t count, size_t to) {
  const auto at = [](auto& array, size_t offset) { return array.begin() + static_cast<std::ptrdiff_t>(offset); };
  std::copy_n(at(stream.indices, from), count, at(stream.indices, to));
  std::copy_n(at(stream.values, from), count, at(stream.values, to));
}

}  // namespace

void Accumulator::add(Stream&& stream) {
  MILLRACE_CHECK(stream.dimension == sum_.dimension, stream.dimension, sum_.dimension);
  changed();
  if (sum_.dense) {
    add_scaled(sum_.values, stream.view(), 1);
  } else if (is_empty()) {
    sum_ = std::move(stream);
  } else if (stream.dense) {
    add_scaled(stream.values, sum_.view(), 1);
    sum_ = std::move(stream);
  } else {
    auto sum = sum_two(sum_.view(), stream.view());
    MILLRACE_CHECK(sum.has_value(), sum_.dimension);
    sum_ = std::move(*sum);
  }
}

void Accumulator::add_to_dense(const StreamView& stream, float factor, uint64_t begin) {
  MILLRACE_CHECK(begin + stream.dimension <= sum_.dimension, begin, stream.dimension, sum_.dimension);
  make_dense();
  add_scaled(values().subspan(begin, stream.dimension), stream, factor);
}

void Accumulator::add_and_collect(std::span<const float> values, float factor, uint64_t wanted) {
  MILLRACE_CHECK(sum_.dense, sum_.dimension);
  has_largest_ = millrace::add_and_collect(changed().values, values, factor, wanted, largest_);
}

void Accumulator::merge(const std::vector<PlacedStream>& pieces) {
  merge_pieces(view(), pieces, merged_);
  std::swap(changed(), merged_);
}

void Accumulator::make_dense() {
  if (!sum_.dense) changed() = to_dense(view());
}

void Accumulator::make_dense_where_smaller() {
  if (sum_.count() >= dense_from_count(sum_.dimension)) make_dense();
}

void Accumulator::drop_zeros() {
  if (!sum_.dense) millrace::drop_zeros(changed());
}

Result<Stream> Accumulator::take_selected(Selector& selector, SelectContext context) {
  IndexBuffer positions;
  if (!is_empty()) {
    context.largest = largest();
    if (auto done = selector.select(view(), context, positions); !done) return std::unexpected(done.error());
  }
  return take_at(positions);
}

Stream Accumulator::take_at(IndexSpan positions) {
  Stream taken = Stream::empty(sum_.dimension);
  taken.values.resize(positions.size());
  if (sum_.dense) {
    taken.indices.assign(positions.begin(), positions.end());
    changed();
    const auto take_chunk = [&](size_t chunk) {
      const size_t end = std::min(positions.size(), (chunk + 1) * kTakenChunk);
      for (size_t i = chunk * kTakenChunk; i < end; ++i) {
        if (i + kTakenPrefetchAhead < end) __builtin_prefetch(&sum_.values[positions[i + kTakenPrefetchAhead]], 1);
        taken.values[i] = std::exchange(sum_.values[positions[i]], 0.0f);
      }
    };
    for_chunks((positions.size() + kTakenChunk - 1) / kTakenChunk, take_chunk, kMemoryPass);
    return taken;
  }
  changed();
  taken.indices.resize(positions.size());
  size_t kept = 0;
  size_t next = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    // The entries between two taken ones move down as a block.
    const size_t run = positions[i] - next;
    move_down(sum_, next, run, kept);
    kept += run;
    taken.indices[i] = sum_.indices[positions[i]];
    taken.values[i] = sum_.values[positions[i]];
    next = positions[i] + 1;
  }
  const size_t rest = sum_.indices.size() - next;
  move_down(sum_, next, rest, kept);
  sum_.indices.resize(kept + rest);
  sum_.values.resize(kept + rest);
  return taken;
}

Stream Accumulator::take_range(uint64_t begin, uint64_t end) {
  MILLRACE_CHECK(begin < end && end <= sum_.dimension, begin, end, sum_.dimension);
  if (sum_.dense) sum_ = to_sparse(view());
  changed();
  Stream taken = slice_of(view(), begin, end);
  const auto [first, last] = range_of(sum_.indices, begin, end);
  const size_t rest = sum_.indices.size() - last;
  move_down(sum_, last, rest, first);
  sum_.indices.resize(first + rest);
  sum_.values.resize(first + rest);
  return taken;
}

}  // namespace millrace
