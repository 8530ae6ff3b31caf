#include "kernels/grid/block_grid.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace millrace {
namespace {

/// Calls visit(block, first, last) for each run of a stream's entries that lie in one block.
template <typename Visit>
void for_each_block(const StreamView& stream, uint64_t base, uint32_t block_indices, const Visit& visit) {
  const size_t count = stream.values.size();
  for (size_t first = 0; first < count;) {
    const uint64_t index = base + (stream.dense ? first : stream.indices[first]);
    const uint64_t block = index / block_indices;
    const uint64_t end = (block + 1) * block_indices - base;  // index in the stream
    size_t last = count;
    if (stream.dense) {
      last = static_cast<size_t>(std::min<uint64_t>(end, count));
    } else if (stream.indices[count - 1] >= end) {
      const auto from = stream.indices.begin() + static_cast<ptrdiff_t>(first);
      last = static_cast<size_t>(std::lower_bound(from, stream.indices.end(), end) - stream.indices.begin());
    }
    visit(static_cast<uint32_t>(block), first, last);
    first = last;
  }
}

uint64_t number_of_exponent(int exponent) { return static_cast<uint64_t>(exponent - kGridExponentLowest); }

}  // namespace

BlockGrid::BlockGrid(uint32_t block_indices, int exponent_initial, uint32_t workers)
    : block_indices_(block_indices), limit_(exact_f32_limit(workers)), exponents_(exponent_initial, limit_) {
  MILLRACE_CHECK(block_indices >= 1);
}

void BlockGrid::round(const StreamView& where, std::span<float> values, uint64_t base) const {
  MILLRACE_CHECK(where.values.size() == values.size(), where.values.size(), values.size());
  for_each_block(where, base, block_indices_, [&](uint32_t block, size_t first, size_t last) {
    const int exponent = exponents_.of(block);
    for (size_t at = first; at < last; ++at) values[at] = on_grid(values[at], exponent, limit_);
  });
}

void BlockGrid::observe(const StreamView& sums, uint64_t base) {
  for_each_block(sums, base, block_indices_, [&](uint32_t block, size_t first, size_t last) {
    exponents_.observe_values(block, sums.values.subspan(first, last - first));
  });
}

Retained BlockGrid::retained() const {
  const ExponentTable::State state = exponents_.state();
  Retained out{number_of_exponent(state.whole.front())};
  for (const auto& [block, exponent] : state.blocks) {
    out.push_back(block);
    out.push_back(number_of_exponent(exponent));
  }
  return out;
}

Status BlockGrid::restore_retained(std::span<const uint64_t> retained, uint64_t blocks) {
  RetainedReader reader(retained);
  const auto exponent = [&reader] {
    constexpr auto kMost = static_cast<uint64_t>(kGridExponentHighest - kGridExponentLowest);
    return static_cast<int>(reader.next(0, kMost)) + kGridExponentLowest;
  };
  ExponentTable::State state;
  state.whole.push_back(exponent());
  uint64_t least = 0;
  for (size_t left = retained.empty() ? 0 : (retained.size() - 1) / 2; left > 0; --left) {
    const uint64_t block = reader.next(least, std::max(least, blocks - 1));
    state.blocks.emplace_back(static_cast<uint32_t>(block), exponent());
    least = block + 1;
  }
  if (Status status = reader.end(); !status) return status;
  if (least > blocks) return fail(ErrorCode::kInvalidArgument, "saved exponents are of a larger tensor");
  exponents_.restore(std::move(state));
  return {};
}

void grid_remainders(std::span<const float> values, std::span<const float> sent, std::span<float> back,
                     std::span<float> beyond) {
  for (size_t at = 0; at < values.size(); ++at) {
    const float difference = values[at] - sent[at];
    const float taken = difference - values[at];
    back[at] = difference;
    beyond[at] = (values[at] - (difference - taken)) - (sent[at] + taken);
  }
}

}  // namespace millrace
