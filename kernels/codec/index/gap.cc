#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/index/gap_blocks.h"

namespace millrace {
namespace {

uint64_t tail_cost(IndexSpan gaps, uint32_t shift) {
  uint64_t cost = uint64_t{shift} * gaps.size();
  for (const uint32_t gap : gaps) cost += gap >> shift;
  return cost;
}

/// The best parameter: the cost is convex in it.
uint32_t tail_shift(IndexSpan gaps) {
  uint32_t shift = 0;
  uint64_t cost = tail_cost(gaps, 0);
  while (shift < kGapShiftMax) {
    const uint64_t above = tail_cost(gaps, shift + 1);
    if (above >= cost) break;
    cost = above;
    ++shift;
  }
  return shift;
}

/// Codes the last, partial block: parameter, low bits one behind the other, unary code.
uint8_t* encode_tail(IndexSpan indices, uint64_t next, uint8_t* at) {
  uint32_t gaps[kGapBlock];
  for (size_t j = 0; j < indices.size(); ++j) {
    gaps[j] = static_cast<uint32_t>(indices[j] - next);
    next = uint64_t{indices[j]} + 1;
  }
  const IndexSpan block(gaps, indices.size());
  const uint32_t shift = tail_shift(block);
  *at++ = static_cast<uint8_t>(shift);
  std::memset(at, 0, kGapBlockBytesMax - 1);
  uint64_t bit = 0;
  for (const uint32_t gap : block) {
    uint64_t window;
    std::memcpy(&window, at + bit / 8, sizeof(window));
    window |= (uint64_t{gap} & ((uint64_t{1} << shift) - 1)) << (bit % 8);
    std::memcpy(at + bit / 8, &window, sizeof(window));
    bit += shift;
  }
  at += (bit + 7) / 8;
  bit = 0;
  for (const uint32_t gap : block) {
    bit += gap >> shift;
    at[bit / 8] = static_cast<uint8_t>(at[bit / 8] | 1u << (bit % 8));
    ++bit;
  }
  MILLRACE_CHECK(bit <= kGapUnaryBitsMax, bit, shift);
  return at + (bit + 7) / 8;
}

uint64_t window_at(const uint8_t* at, const uint8_t* end) {
  uint64_t window = 0;
  std::memcpy(&window, at, static_cast<size_t>(std::min<std::ptrdiff_t>(8, end - at)));
  return window;
}

/// Decodes a partial block of `count` >= 1 indices; `at` null when malformed.
GapDecoded decode_tail(const uint8_t* at, const uint8_t* end, size_t count, uint64_t next, uint64_t dimension,
                       uint32_t* out) {
  if (at == end) return {};
  const uint32_t shift = *at++;
  const uint64_t low_bits = uint64_t{shift} * count;
  if (shift > kGapShiftMax || static_cast<uint64_t>(end - at) < (low_bits + 7) / 8) return {};
  const uint8_t* low = at;
  const uint8_t* unary = at + (low_bits + 7) / 8;
  if (low_bits % 8 != 0 && unary[-1] >> (low_bits % 8) != 0) return {};
  BitReader quotients({unary, end});
  uint64_t bit = 0;
  for (size_t j = 0; j < count; ++j) {
    const uint64_t quotient = quotients.take_unary(kGapUnaryBitsMax);
    bit += quotient + 1;
    if (bit > kGapUnaryBitsMax || quotients.overrun()) return {};
    const uint64_t low_at = uint64_t{shift} * j;
    const uint64_t window = shift == 0 ? 0 : window_at(low + low_at / 8, unary) >> (low_at % 8);
    next += (quotient << shift) + (window & ((uint64_t{1} << shift) - 1));
    if (next >= dimension) return {};
    out[j] = static_cast<uint32_t>(next++);
  }
  const uint8_t* last = unary + (bit - 1) / 8;
  if (bit % 8 != 0 && *last >> (bit % 8) != 0) return {};
  return {last + 1, next};
}

class GapIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId::kGap; }
  std::string_view name() const override { return "gap"; }
  std::string_view paper() const override {
    return "Rice-coded gaps ([Golomb66], [Rice79]), as [DeepReduce21, 3] compresses keys";
  }
  bool lossless() const override { return true; }

  /// Rice codes take about log2(n / k) + 2 bits for uniform indices, and a block 12 bits more.
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    if (count == 0) return 0;
    const double bits = std::log2(static_cast<double>(dimension) / static_cast<double>(count)) + 2.1;
    return static_cast<uint64_t>(bits * static_cast<double>(count) / 8.0) + 2 * (count / kGapBlock) + 16;
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions& options, ByteBuffer& out,
                IndexBuffer*) const override {
    if (indices.empty()) return {};
    MILLRACE_CHECK(indices.back() < dimension, indices.back(), dimension);
    size_t used = out.size();
    size_t blocks = indices.size() / kGapBlock;
    const size_t tail = indices.size() % kGapBlock;
    uint64_t next = 0;
    const uint32_t* from = indices.data();
    out.resize(used + bytes_estimate(indices.size(), dimension, options.spec) + 2 * kGapBlockBytesMax);
    while (blocks > 0) {
      const GapEncoded run = gap_encode_blocks(from, blocks, next, out.data() + used, out.size() - used);
      used += run.bytes;
      blocks -= run.blocks;
      from += run.blocks * kGapBlock;
      if (run.blocks > 0) next = uint64_t{from[-1]} + 1;
      if (blocks > 0) out.resize(used + used / 4 + 2 * kGapBlockBytesMax);
    }
    if (tail > 0) {
      out.resize(std::max(out.size(), used + kGapBlockBytesMax));
      used = static_cast<size_t>(encode_tail({from, tail}, next, out.data() + used) - out.data());
    }
    out.resize(used);
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (count > dimension) return fail(ErrorCode::kMalformed, "gap code: more indices than the dimension has");
    // Every index takes a bit at least: no memory for a count that the bytes cannot hold.
    if (count / 8 > bytes.size()) return fail(ErrorCode::kMalformed, "gap code: too short for the number of indices");
    indices.resize(count);
    const uint8_t* end = bytes.data() + bytes.size();
    const size_t blocks = count / kGapBlock;
    const size_t tail = count % kGapBlock;
    GapDecoded run = gap_decode_blocks(bytes.data(), end, blocks, 0, dimension, indices.data());
    if (tail > 0 && (run.at != nullptr || blocks == 0)) {
      run = decode_tail(blocks == 0 ? bytes.data() : run.at, end, tail, run.next, dimension,
                        indices.data() + blocks * kGapBlock);
    }
    if (count == 0 ? !bytes.empty() : (run.at == nullptr || run.at != end)) {
      return fail(ErrorCode::kMalformed, "gap code: cut off, out of range or with bytes left over");
    }
    return {};
  }
};

}  // namespace

const IndexCodec& gap_index_codec() {
  static const GapIndexCodec codec;
  return codec;
}

}  // namespace millrace
