// Blocks of the adaptive code: plain integers, compiled once per instruction set for its shifts by a variable count.
// The format is in protocol/wire/adaptive_codec.md.
#include "kernels/codec/index/adaptive_blocks.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/index/adaptive_blocks.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

constexpr uint32_t kPaddingShift = 5;  // in the block's first byte, above the shape

/// Streams of a block, and where each begins: those with one more than the others come first.
struct Streams {
  size_t count;
  std::array<size_t, kAdaptiveStreams + 1> begin{};

  explicit Streams(size_t entries) : count(entries < kAdaptiveStreamsFrom ? 1 : kAdaptiveStreams) {
    for (size_t s = 0; s < count; ++s) begin[s + 1] = begin[s] + (entries + count - 1 - s) / count;
  }
  size_t length(size_t s) const { return begin[s + 1] - begin[s]; }
};

// ---------------------------------------------------------------------------------------------------------- encoding

/// Writes bits backwards: the last written is read first, each field from its lowest bit.
class BackwardWriter {
 public:
  explicit BackwardWriter(uint8_t* end) : at_(end) {}

  HWY_INLINE void put(uint64_t bits, uint32_t count) {  // count <= 32
    pending_ = pending_ << count | bits;
    filled_ += count;
    if (filled_ < 32) return;
    filled_ -= 32;
    at_ -= sizeof(uint32_t);
    const auto word = static_cast<uint32_t>(pending_ >> filled_);
    std::memcpy(at_, &word, sizeof(word));
  }

  /// Fills up with bits 0 that are read first. Returns how many they are.
  uint32_t pad() {
    const uint32_t padding = (8 - filled_ % 8) % 8;
    pending_ <<= padding;
    for (filled_ += padding; filled_ > 0; filled_ -= 8) *--at_ = static_cast<uint8_t>(pending_ >> (filled_ - 8));
    return padding;
  }
  uint8_t* prepend(uint8_t byte) {
    *--at_ = byte;
    return at_;
  }

 private:
  uint8_t* at_;
  uint64_t pending_ = 0;
  uint32_t filled_ = 0;  // < 32 between calls
};

/// The shape that takes the fewest bits for a sample of the block.
uint32_t best_shape(std::span<const uint16_t> bins) {
  constexpr size_t kSample = 2048;
  const auto& costs = adaptive_costs();
  std::array<uint32_t, kAdaptiveShapes> sums{};
  const size_t stride = bins.size() / kSample + 1;
  for (size_t j = 0; j < bins.size(); j += stride) {
    const auto& cost = costs[bins[j] / kAdaptiveBins][bins[j] % kAdaptiveBins];
    for (size_t s = 0; s < kAdaptiveShapes; ++s) sums[s] += cost[s];
  }
  return static_cast<uint32_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
}

const uint8_t* encode_block(std::span<const uint32_t> indices, uint64_t next, AdaptiveStreamLevels& levels,
                            const AdaptiveScratch& scratch) {
  const Streams streams(indices.size());
  for (size_t s = 0; s < streams.count; ++s) {
    AdaptiveLevels expected = levels[s];
    for (size_t j = streams.begin[s]; j < streams.begin[s + 1]; ++j) {
      const uint64_t value = uint64_t{indices[j]} + 1 - next;
      next += value;
      scratch.gaps[j] = static_cast<uint32_t>(value - 1);
      scratch.bins[j] = static_cast<uint16_t>(expected.context() * kAdaptiveBins + adaptive_bin(value));
      expected.see(adaptive_level(value));
    }
    levels[s] = expected;
  }
  const uint32_t shape = best_shape({scratch.bins, indices.size()});
  const AdaptiveTables& tables = adaptive_tables(shape);
  const AdaptiveEncoderSymbol* const symbols = tables.encoder.data();
  const uint16_t* const behind = tables.encoder_next.data();
  BackwardWriter writer(scratch.code_end);
  std::array<uint32_t, kAdaptiveStreams> states;
  states.fill(kAdaptiveStates);
  const auto put = [&](size_t s, size_t j) HWY_ATTR {
    const uint32_t bin = scratch.bins[j];
    const AdaptiveEncoderSymbol& symbol = symbols[bin];
    const uint32_t state_bits = (states[s] + symbol.bits_bias) >> 16;
    const uint64_t low = states[s] & ((uint32_t{1} << state_bits) - 1);
    const uint64_t raw = scratch.gaps[j] - symbol.gap_low;
    if (symbol.raw_bits + state_bits <= 32) [[likely]] {
      writer.put(raw << state_bits | low, symbol.raw_bits + state_bits);
    } else {
      writer.put(raw, symbol.raw_bits);
      writer.put(low, state_bits);
    }
    const size_t row = bin / kAdaptiveBins * kAdaptiveStates;
    states[s] = behind[static_cast<std::ptrdiff_t>(row + (states[s] >> state_bits)) + symbol.next_bias];
  };
  const size_t shortest = indices.size() / streams.count;
  for (size_t s = streams.count; s-- > 0;) {
    if (streams.length(s) > shortest) put(s, streams.begin[s] + shortest);
  }
  for (size_t j = shortest; j-- > 0;) {
    for (size_t s = streams.count; s-- > 0;) put(s, streams.begin[s] + j);
  }
  for (size_t s = streams.count; s-- > 0;) writer.put(states[s] - kAdaptiveStates, kAdaptiveStateBits);
  const uint32_t padding = writer.pad();
  return writer.prepend(static_cast<uint8_t>(shape | padding << kPaddingShift));
}

// ---------------------------------------------------------------------------------------------------------- decoding

struct Decoder {
  const AdaptiveDecoderState* table;
  const uint8_t* at;
  const uint8_t* end;
  uint64_t bit = 0;  // from at
  std::array<uint32_t, kAdaptiveStreams> states{};
  AdaptiveStreamLevels levels;

  /// Anywhere; zeros behind the end.
  HWY_INLINE uint64_t careful_window() const {
    uint64_t word = 0;
    const uint64_t byte = bit / 8;
    const auto size = static_cast<uint64_t>(end - at);
    if (byte < size) std::memcpy(&word, at + byte, std::min<uint64_t>(sizeof(word), size - byte));
    return word >> (bit % 8);
  }
  HWY_INLINE uint64_t window() const {
    uint64_t word;
    std::memcpy(&word, at + bit / 8, sizeof(word));
    return word >> (bit % 8);
  }
  HWY_INLINE uint32_t take(size_t s, uint64_t bits) {
    const AdaptiveDecoderState state = table[levels[s].context() * kAdaptiveStates + states[s]];
    states[s] = state.next + static_cast<uint32_t>(bits & ((uint64_t{1} << state.state_bits) - 1));
    const auto raw = static_cast<uint32_t>((bits & ((uint64_t{1} << state.total_bits) - 1)) >> state.state_bits);
    bit += state.total_bits;
    const uint32_t gap = state.gap_low + raw;
    levels[s].see(adaptive_level(uint64_t{gap} + 1));
    return gap;
  }
};

/// As many rounds of 4 gaps as the bytes surely suffice for, `rounds` at most. Returns how many.
HWY_INLINE size_t take_rounds(Decoder& decoder, const Streams& streams, size_t rounds, uint32_t* gaps) {
  constexpr uint64_t kRoundBytes = (kAdaptiveStreams * (kAdaptiveStateBits + 32) + 7) / 8 + sizeof(uint64_t);
  Decoder d = decoder;  // in registers
  const auto size = static_cast<uint64_t>(d.end - d.at);
  uint32_t* const out0 = gaps + streams.begin[0];
  uint32_t* const out1 = gaps + streams.begin[1];
  uint32_t* const out2 = gaps + streams.begin[2];
  uint32_t* const out3 = gaps + streams.begin[3];
  size_t j = 0;
  for (; j < rounds && d.bit / 8 + kRoundBytes <= size; ++j) {
    out0[j] = d.take(0, d.window());
    out1[j] = d.take(1, d.window());
    out2[j] = d.take(2, d.window());
    out3[j] = d.take(3, d.window());
  }
  decoder = d;
  return j;
}

const uint8_t* decode_block(const uint8_t* at, const uint8_t* end, AdaptiveStreamLevels& levels,
                            std::span<uint32_t> gaps) {
  if (at == end) return nullptr;
  const uint32_t shape = *at & ((1u << kPaddingShift) - 1);
  const uint32_t padding = *at >> kPaddingShift;
  if (shape >= kAdaptiveShapes) return nullptr;
  const Streams streams(gaps.size());
  Decoder decoder{adaptive_tables(shape).decoder.data(), at + 1, end, padding, {}, levels};
  if (at + 1 < end && (at[1] & ((1u << padding) - 1)) != 0) return nullptr;
  for (size_t s = 0; s < streams.count; ++s) {
    decoder.states[s] = static_cast<uint32_t>(decoder.careful_window() & (kAdaptiveStates - 1));
    decoder.bit += kAdaptiveStateBits;
  }
  const size_t shortest = gaps.size() / streams.count;
  size_t j = streams.count == kAdaptiveStreams ? take_rounds(decoder, streams, shortest, gaps.data()) : 0;
  const auto bits = static_cast<uint64_t>(end - decoder.at) * 8;
  for (; j <= shortest; ++j) {
    if (decoder.bit > bits) return nullptr;  // at once: zeros could be taken for long
    for (size_t s = 0; s < streams.count; ++s) {
      if (j < streams.length(s)) gaps[streams.begin[s] + j] = decoder.take(s, decoder.careful_window());
    }
  }
  uint32_t states = 0;
  for (size_t s = 0; s < streams.count; ++s) states |= decoder.states[s];
  if (states != 0 || decoder.bit % 8 != 0 || decoder.bit / 8 > static_cast<uint64_t>(end - decoder.at)) return nullptr;
  levels = decoder.levels;
  return decoder.at + decoder.bit / 8;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(encode_block);
HWY_EXPORT(decode_block);

const uint8_t* adaptive_encode_block(std::span<const uint32_t> indices, uint64_t next, AdaptiveStreamLevels& levels,
                                     const AdaptiveScratch& scratch) {
  return HWY_DYNAMIC_DISPATCH(encode_block)(indices, next, levels, scratch);
}

const uint8_t* adaptive_decode_block(const uint8_t* at, const uint8_t* end, AdaptiveStreamLevels& levels,
                                     std::span<uint32_t> gaps) {
  return HWY_DYNAMIC_DISPATCH(decode_block)(at, end, levels, gaps);
}

}  // namespace millrace
#endif  // HWY_ONCE
