#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/slice_kernels.h"

namespace millrace {
namespace {

// Entries of `sent` that are processed together, and the widest index range for a lookup in a bitmap (32 KiB, an L1
// cache's most). Wider chunks are merged.
constexpr size_t kChunk = 2048;
constexpr uint64_t kBitmapWidth = uint64_t{1} << 18;

// From this number of carried entries on, one binary search an entry is faster than a walk over them.
constexpr size_t kNotCarriedSearchRatio = 64;

using ChunkBitmap = Buffer<uint64_t>;

/// Appends those sent[i], i in [begin, end), that `absent(index)` holds for; asked in order, exactly once each.
template <typename Absent>
void keep_absent(const StreamView& sent, size_t begin, size_t end, Stream& out, size_t& kept, Absent&& absent) {
  for (size_t i = begin; i < end; ++i) {
    const uint32_t index = sent.indices[i];
    out.indices[kept] = index;
    out.values[kept] = sent.values[i];
    kept += absent(index) ? 1 : 0;
  }
}

/// One chunk by bitmap: no branch depends on the data. The bitmap comes and goes clear.
void not_carried_by_bitmap(const StreamView& sent, size_t begin, size_t end, IndexSpan carried, ChunkBitmap& bitmap,
                           Stream& out, size_t& kept) {
  const uint32_t base = sent.indices[begin];
  for (const uint32_t index : carried) bitmap[(index - base) / 64] |= uint64_t{1} << ((index - base) % 64);
  keep_absent(sent, begin, end, out, kept, [&](uint32_t index) {
    const uint32_t offset = index - base;
    return (bitmap[offset / 64] >> (offset % 64) & 1) == 0;
  });
  const uint32_t width = sent.indices[end - 1] - base + 1;
  std::fill_n(bitmap.begin(), (width + 63) / 64, 0);
}

void not_carried_by_search(const StreamView& sent, size_t begin, size_t end, IndexSpan carried, Stream& out,
                           size_t& kept) {
  auto from = carried.begin();
  keep_absent(sent, begin, end, out, kept, [&](uint32_t index) {
    from = std::lower_bound(from, carried.end(), index);
    return from == carried.end() || *from != index;
  });
}

/// A chunk whose entries lie far apart: the carried ones are walked along with them.
void not_carried_by_merge(const StreamView& sent, size_t begin, size_t end, IndexSpan carried, Stream& out,
                          size_t& kept) {
  size_t i = begin, j = 0;
  while (i < end && j < carried.size()) {
    const uint32_t left = sent.indices[i], right = carried[j];
    out.indices[kept] = left;
    out.values[kept] = sent.values[i];
    kept += left < right;
    i += left <= right;
    j += right <= left;
  }
  keep_absent(sent, i, end, out, kept, [](uint32_t) { return true; });
}

Stream not_carried_sparse(const StreamView& sent, IndexSpan carried) {
  Stream out = Stream::empty(sent.dimension);
  // One slot more: an entry that is not kept is written too, and overwritten.
  out.indices.resize(sent.count() + 1);
  out.values.resize(sent.count() + 1);
  ChunkBitmap bitmap;
  size_t kept = 0;
  for (size_t begin = 0; begin < sent.count(); begin += kChunk) {
    const size_t end = std::min<size_t>(begin + kChunk, sent.count());
    const auto [first, last] = range_of(carried, sent.indices[begin], uint64_t{sent.indices[end - 1]} + 1);
    const IndexSpan within = carried.subspan(first, last - first);
    carried = carried.subspan(last);
    const uint64_t width = uint64_t{sent.indices[end - 1]} - sent.indices[begin] + 1;
    if (within.size() / kNotCarriedSearchRatio >= end - begin) {
      not_carried_by_search(sent, begin, end, within, out, kept);
    } else if (width <= kBitmapWidth && !within.empty()) {
      if (bitmap.empty()) bitmap.resize(kBitmapWidth / 64, 0);
      not_carried_by_bitmap(sent, begin, end, within, bitmap, out, kept);
    } else {
      not_carried_by_merge(sent, begin, end, within, out, kept);
    }
  }
  out.indices.resize(kept);
  out.values.resize(kept);
  return out;
}

}  // namespace

Stream not_carried(const StreamView& sent, const StreamView& carried) {
  MILLRACE_CHECK(sent.dimension == carried.dimension, sent.dimension, carried.dimension);
  if (carried.dense) return Stream::empty(sent.dimension);
  if (sent.dense) return not_carried_sparse(to_sparse(sent).view(), carried.indices);
  return not_carried_sparse(sent, carried.indices);
}

}  // namespace millrace
