#include "kernels/reduce/merge_two.h"

#include <algorithm>
#include <array>

#include "kernels/reduce/reduce.h"

namespace millrace {
namespace {

// Merging costs the same at any density; slices cost by the 64 indices: from about six entries in 64 on they win.
constexpr uint64_t kMergeIndicesPerEntry = 12;

}  // namespace

bool is_merged(const StreamView& a, const StreamView& b) {
  // A merged sum stays sparse: the dense form begins at a third of the dimension or later.
  static_assert(kMergeIndicesPerEntry > 3);
  return !a.dense && !b.dense && a.count() + b.count() < a.dimension / kMergeIndicesPerEntry;
}

Stream merge_two(const StreamView& a, const StreamView& b) {
  Stream out = Stream::empty(a.dimension);
  const size_t a_count = a.count(), b_count = b.count();
  out.indices.resize(a_count + b_count);
  out.values.resize(a_count + b_count);
  uint32_t* const index = out.indices.data();
  float* const value = out.values.data();
  size_t i = 0, j = 0, at = 0;
  while (i < a_count && j < b_count) {
    const uint32_t left = a.indices[i], right = b.indices[j];
    // Where only one has the index, the other adds -0, the identity.
    const std::array<float, 2> left_or_nothing = {-0.0F, a.values[i]}, right_or_nothing = {-0.0F, b.values[j]};
    const size_t take_left = left <= right, take_right = right <= left;
    index[at] = std::min(left, right);
    value[at] = left_or_nothing[take_left] + right_or_nothing[take_right];
    i += take_left;
    j += take_right;
    ++at;
  }
  const auto append = [&](const StreamView& rest, size_t from) {
    std::copy(rest.indices.begin() + static_cast<ptrdiff_t>(from), rest.indices.end(), index + at);
    std::copy(rest.values.begin() + static_cast<ptrdiff_t>(from), rest.values.end(), value + at);
    at += rest.count() - from;
  };
  append(a, i);
  append(b, j);
  out.indices.resize(at);
  out.values.resize(at);
  return out;
}

Result<Stream> sum_two(const StreamView& a, const StreamView& b) { return sum_many(std::array{a, b}); }

}  // namespace millrace
