#include "kernels/codec/index/adaptive_tables.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>

#include "kernels/base/check.h"

namespace millrace {
namespace {

/// Describes how the levels of gaps lie about the expected level: a logistic distribution of log2(value) with a slope
/// to either side.
struct Shape {
  int32_t offset;  // of its middle from the expected level, in 1/16 octave
  int32_t below;   // slopes: the larger, the steeper
  int32_t above;
};

constexpr std::array<Shape, kAdaptiveShapes> kShapes = {
    {{0, 4, 4}, {0, 4, 6}, {0, 3, 3}, {8, 4, 8}, {-8, 4, 6}, {0, 3, 4}, {0, 6, 6}, {0, 6, 8}}};

constexpr uint32_t kOne = 65'536;  // a probability of 1

/// 2^(16 - i / 8)
constexpr std::array<uint64_t, 8> kEighths = {65'536, 60'097, 55'109, 50'535, 46'341, 42'495, 38'968, 35'734};

/// kOne / (1 + 2^(x / 8))
uint32_t tail(uint32_t x) {
  if (x >= 8 * 40) return 0;
  const uint64_t power = (kEighths[x % 8] << 14) >> (x / 8);
  return static_cast<uint32_t>(kOne * power / ((uint64_t{1} << 30) + power));
}

/// Where a bin begins: 16 log2(its smallest value - 1/2).
int32_t bin_begin(uint32_t bin) {
  constexpr std::array<int32_t, 9> kFirst = {0, 9, 21, 29, 39, 47, 56, 63, 73};
  if (bin < kFirst.size()) return kFirst[bin];
  return static_cast<int32_t>(16 * ((bin + 1) / 2) + 9 * ((bin + 1) % 2));
}

/// The chance, of kOne, that a gap lies in the bin.
uint32_t weight(const Shape& shape, uint32_t context, uint32_t bin) {
  const auto below = [&](uint32_t b) {
    if (b == 0) return 0u;
    if (b == kAdaptiveBins) return kOne;
    const int32_t x = bin_begin(b) - 8 * static_cast<int32_t>(context) - shape.offset;
    return x < 0 ? tail(static_cast<uint32_t>(-x * shape.below) >> 3)
                 : kOne - tail(static_cast<uint32_t>(x * shape.above) >> 3);
  };
  return below(bin + 1) - below(bin);
}

/// A bin that weighs less has no symbol of its own.
constexpr uint32_t kOwnWeight = 20;
/// Bins above those with one of their own that share one; those beyond share the last.
constexpr uint32_t kNearBins = 6;
/// No symbol is more frequent, so that every index takes some of a bit.
constexpr uint32_t kAdaptiveTablesFrequencyMax = kAdaptiveStates / 8 * 7;

/// Frequencies by weight, 1 at least; what rounding leaves over goes to the most frequent, of several to the first.
void set_frequencies(AdaptiveAlphabet& alphabet, const std::array<uint32_t, kAdaptiveBins>& weights) {
  uint32_t sum = 0;
  size_t most = 0;
  for (size_t i = 0; i < alphabet.count; ++i) {
    AdaptiveSymbol& symbol = alphabet.symbols[i];
    uint64_t own = 0;
    for (uint32_t bin = symbol.first_bin; bin <= symbol.last_bin; ++bin) own += weights[bin];
    symbol.frequency = std::max(1u, static_cast<uint32_t>((own * kAdaptiveStates + kOne / 2) / kOne));
    sum += symbol.frequency;
    if (symbol.frequency > alphabet.symbols[most].frequency) most = i;
  }
  uint32_t& largest = alphabet.symbols[most].frequency;
  MILLRACE_CHECK(largest + kAdaptiveStates > sum, largest, sum);
  largest = largest + kAdaptiveStates - sum;
  if (largest <= kAdaptiveTablesFrequencyMax) return;
  const size_t neighbour = most + 1 < alphabet.count ? most + 1 : most - 1;
  alphabet.symbols[neighbour].frequency += largest - kAdaptiveTablesFrequencyMax;
  largest = kAdaptiveTablesFrequencyMax;
}

}  // namespace

AdaptiveLevels AdaptiveLevels::from(uint64_t count, uint64_t dimension) {
  const int32_t level = std::max(0, adaptive_level(std::max<uint64_t>(dimension / count, 1)) - 256);
  return {level, level};
}

AdaptiveAlphabet adaptive_alphabet(uint32_t shape, uint32_t context) {
  MILLRACE_CHECK(shape < kAdaptiveShapes && context < kAdaptiveContexts, shape, context);
  std::array<uint32_t, kAdaptiveBins> weights{};
  for (uint32_t bin = 0; bin < kAdaptiveBins; ++bin) weights[bin] = weight(kShapes[shape], context, bin);
  // The last bin is 2^32 alone, which only the last symbol stands for.
  constexpr uint32_t kLastOwn = kAdaptiveBins - 2;
  auto first =
      static_cast<uint32_t>(std::max_element(weights.begin(), weights.begin() + kLastOwn + 1) - weights.begin());
  uint32_t last = first;
  while (first > 0 && weights[first - 1] >= kOwnWeight) --first;
  while (last < kLastOwn && weights[last + 1] >= kOwnWeight) ++last;

  AdaptiveAlphabet alphabet;
  const auto shared_bits = [](uint32_t last_bin) {  // of any gap up to the last one of the bin
    return static_cast<uint32_t>(std::bit_width(adaptive_bin_low(last_bin + 1) - 2));
  };
  const auto add = [&](uint32_t gap_low, uint32_t raw_bits, uint32_t first_bin, uint32_t last_bin) {
    alphabet.symbols[alphabet.count++] = {0, gap_low, raw_bits, first_bin, last_bin};
  };
  if (first > 0) add(0, shared_bits(first - 1), 0, first - 1);
  for (uint32_t bin = first; bin <= last; ++bin) {
    add(static_cast<uint32_t>(adaptive_bin_low(bin) - 1), bin == 0 ? 0 : (bin + 1) / 2 - 1, bin, bin);
  }
  const uint32_t near = std::min(last + kNearBins, kLastOwn);
  if (near > last) add(0, shared_bits(near), last + 1, near);
  add(0, 32, near + 1, kAdaptiveBins - 1);
  set_frequencies(alphabet, weights);
  return alphabet;
}

std::array<uint8_t, kAdaptiveStates> adaptive_spread(const AdaptiveAlphabet& alphabet) {
  constexpr uint32_t kStep = kAdaptiveStates / 2 + kAdaptiveStates / 8 + 3;
  std::array<uint8_t, kAdaptiveStates> spread{};
  uint32_t at = 0;
  for (size_t i = 0; i < alphabet.count; ++i) {
    for (uint32_t j = 0; j < alphabet.symbols[i].frequency; ++j) {
      spread[at] = static_cast<uint8_t>(i);
      at = (at + kStep) % kAdaptiveStates;
    }
  }
  return spread;
}

namespace {

void fill_context(AdaptiveTables& tables, uint32_t context, const AdaptiveAlphabet& alphabet) {
  std::array<uint32_t, kAdaptiveBins> first{};  // place of the symbol's first state among the encoder's
  std::array<uint32_t, kAdaptiveBins> seen{};
  for (size_t i = 1; i < alphabet.count; ++i) first[i] = first[i - 1] + alphabet.symbols[i - 1].frequency;
  const std::array<uint8_t, kAdaptiveStates> spread = adaptive_spread(alphabet);
  const size_t row = context * kAdaptiveStates;
  for (uint32_t state = 0; state < kAdaptiveStates; ++state) {
    const uint32_t i = spread[state];
    const AdaptiveSymbol& symbol = alphabet.symbols[i];
    const uint32_t number = symbol.frequency + seen[i];  // in [frequency, 2 frequency)
    const uint32_t bits = kAdaptiveStateBits + 1 - static_cast<uint32_t>(std::bit_width(number));
    tables.decoder[row + state] = {symbol.gap_low, static_cast<uint16_t>((number << bits) - kAdaptiveStates),
                                   static_cast<uint8_t>(bits), static_cast<uint8_t>(bits + symbol.raw_bits)};
    tables.encoder_next[row + first[i] + seen[i]] = static_cast<uint16_t>(kAdaptiveStates + state);
    ++seen[i];
  }
  for (size_t i = 0; i < alphabet.count; ++i) {
    const AdaptiveSymbol& symbol = alphabet.symbols[i];
    const uint32_t frequency = symbol.frequency;
    // Of a state x either `most` bits, where x >= frequency << most, or one less.
    const uint32_t most = kAdaptiveStateBits + 1 - static_cast<uint32_t>(std::bit_width(frequency));
    const AdaptiveEncoderSymbol coded{(most << 16) - (frequency << most),
                                      static_cast<int32_t>(first[i]) - static_cast<int32_t>(frequency), symbol.gap_low,
                                      symbol.raw_bits};
    for (uint32_t bin = symbol.first_bin; bin <= symbol.last_bin; ++bin) {
      tables.encoder[context * kAdaptiveBins + bin] = coded;
    }
  }
}

std::unique_ptr<const AdaptiveTables> make_tables(uint32_t shape) {
  auto tables = std::make_unique<AdaptiveTables>();
  tables->decoder.resize(kAdaptiveContexts * kAdaptiveStates);
  tables->encoder_next.resize(kAdaptiveContexts * kAdaptiveStates);
  tables->encoder.resize(kAdaptiveContexts * kAdaptiveBins);
  for (uint32_t context = 0; context < kAdaptiveContexts; ++context) {
    fill_context(*tables, context, adaptive_alphabet(shape, context));
  }
  return tables;
}

std::unique_ptr<const AdaptiveCosts> make_costs() {
  auto costs = std::make_unique<AdaptiveCosts>();
  for (uint32_t context = 0; context < kAdaptiveContexts; ++context) {
    for (uint32_t shape = 0; shape < kAdaptiveShapes; ++shape) {
      const AdaptiveAlphabet alphabet = adaptive_alphabet(shape, context);
      for (size_t i = 0; i < alphabet.count; ++i) {
        const AdaptiveSymbol& symbol = alphabet.symbols[i];
        const double bits = symbol.raw_bits - std::log2(static_cast<double>(symbol.frequency) / kAdaptiveStates);
        for (uint32_t bin = symbol.first_bin; bin <= symbol.last_bin; ++bin) {
          (*costs)[context][bin][shape] = static_cast<uint16_t>(std::lround(256 * bits));
        }
      }
    }
  }
  return costs;
}

}  // namespace

const AdaptiveTables& adaptive_tables(uint32_t shape) {
  static std::array<std::once_flag, kAdaptiveShapes> made;
  static std::array<std::unique_ptr<const AdaptiveTables>, kAdaptiveShapes> tables;
  MILLRACE_CHECK(shape < kAdaptiveShapes, shape);
  std::call_once(made[shape], [shape] { tables[shape] = make_tables(shape); });
  return *tables[shape];
}

const AdaptiveCosts& adaptive_costs() {
  static const std::unique_ptr<const AdaptiveCosts> costs = make_costs();
  return *costs;
}

}  // namespace millrace
