// [GSpar18, 2.3], the entropy-coded vector q of {0, -1, +1, 2}. It takes at most sum of d_l log2(d / d_l) bits over its
// four symbols (2 d at most, as four symbols take two bits). With k = d - d_0 entries that are not 0 and log2(d / d_l)
// = log2(d / k) + log2(k / d_l) this sum is
//
//     d_0 log2(d / d_0) + k log2(d / k)   +   sum over -1, +1, 2 of d_l log2(k / d_l)
//
// and its first part is the entropy of where the entries are: the index code's business (log2 C(d, k) is below it). The
// second is this code's: asymmetric numeral systems [ANS13] with the frequencies of the stream. The paper's "Q(g_i) =
// lambda Q(q_i)" means q_i / lambda.
#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value/gspar_parts.h"

namespace millrace {
namespace {

constexpr uint64_t kGsparEntropyHeaderBytes = 12;
constexpr uint32_t kFrequencyBits = 14;
constexpr uint32_t kFrequencies = 1u << kFrequencyBits;
// A symbol takes 0.02 bits at least, so that a count can be checked against the bytes before memory is taken for it.
constexpr uint32_t kGsparEntropyFrequencyMax = kFrequencies / 64 * 63;
constexpr uint64_t kEntriesPerByte = 512;
constexpr uint32_t kStateMin = 1u << 16;

std::unexpected<Error> malformed_gspar_entropy(const char* what) {
  return fail(ErrorCode::kMalformed, std::string("gspar_entropy: ") + what);
}

struct Model {
  uint32_t minus = 0;
  uint32_t plus = 0;

  std::array<uint32_t, 3> frequencies() const { return {minus, plus, kFrequencies - minus - plus}; }

  /// Of symbols that occur so often, not all 0 times.
  static Model from(const std::array<uint64_t, 3>& counts) {
    const uint64_t all = counts[0] + counts[1] + counts[2];
    std::array<uint32_t, 3> frequencies{};
    uint32_t sum = 0;
    size_t most = 0;
    for (size_t s = 0; s < 3; ++s) {
      const auto rounded = static_cast<uint32_t>((counts[s] * kFrequencies + all / 2) / all);
      frequencies[s] = counts[s] == 0 ? 0 : std::max(1u, rounded);
      sum += frequencies[s];
      if (frequencies[s] > frequencies[most]) most = s;
    }
    frequencies[most] = frequencies[most] + kFrequencies - sum;
    if (frequencies[most] > kGsparEntropyFrequencyMax) {
      frequencies[(most + 1) % 3] += frequencies[most] - kGsparEntropyFrequencyMax;
      frequencies[most] = kGsparEntropyFrequencyMax;
    }
    return {frequencies[0], frequencies[1]};
  }
};

struct GsparEntropyHeader {
  bool all_exact = false;
  Model model;
  uint64_t exact = 0;

  /// And checks the length of the code, as far as `count` says it.
  static std::optional<GsparEntropyHeader> parse(ByteSpan bytes, uint64_t count) {
    ByteReader reader(bytes);
    const auto mode = reader.get<uint8_t>();
    const auto zero = reader.get<uint8_t>();
    const auto minus = reader.get<uint16_t>();
    const auto plus = reader.get<uint16_t>();
    const auto zeros = reader.get<uint16_t>();
    const auto exact = reader.get<uint32_t>();
    if (!mode || !zero || !minus || !plus || !zeros || !exact || count > kDimensionMax) return std::nullopt;
    if (*mode > 1 || *zero != 0 || *zeros != 0) return std::nullopt;
    if (*mode == 0) {
      if (*minus != 0 || *plus != 0 || *exact != 0) return std::nullopt;
      if (reader.remaining() != count * sizeof(float)) return std::nullopt;
      return GsparEntropyHeader{true, {}, count};
    }
    if (*minus > kGsparEntropyFrequencyMax || *plus > kGsparEntropyFrequencyMax || *exact >= count) return std::nullopt;
    if (*minus + *plus > kFrequencies || *minus + *plus < kFrequencies - kGsparEntropyFrequencyMax) return std::nullopt;
    const uint64_t other = (uint64_t{*exact} + 1) * sizeof(float);
    if (reader.remaining() < other + sizeof(uint32_t)) return std::nullopt;
    const uint64_t symbols = reader.remaining() - other;
    if (symbols % 2 != 0 || count > symbols * kEntriesPerByte) return std::nullopt;
    return GsparEntropyHeader{false, {*minus, *plus}, *exact};
  }
};

uint32_t symbol_of(float value, uint32_t scale) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kSignBit) == 0 ? 1 : 0;
  return (bits & ~kSignBit) == scale ? sign : 2;
}

/// The code of the symbols, from the last to the first, so that it is read from the first.
uint32_t code_symbols(std::span<const float> values, uint32_t scale, const Model& model, Buffer<uint16_t>& words) {
  const std::array<uint32_t, 3> frequencies = model.frequencies();
  const std::array<uint32_t, 3> starts = {0, model.minus, model.minus + model.plus};
  uint32_t state = kStateMin;
  for (size_t i = values.size(); i-- > 0;) {
    const uint32_t symbol = symbol_of(values[i], scale);
    const uint32_t frequency = frequencies[symbol];
    if (state >= frequency << (32 - kFrequencyBits)) {
      words.push_back(static_cast<uint16_t>(state));
      state >>= 16;
    }
    state = (state / frequency << kFrequencyBits) + state % frequency + starts[symbol];
  }
  std::reverse(words.begin(), words.end());
  return state;
}

void append_all_exact(std::span<const float> values, ByteBuffer& out) {
  ByteWriter writer(out);
  writer.put(std::array<uint8_t, kGsparEntropyHeaderBytes>{});
  writer.put_array(values);
}

Status encode_gspar_entropy_values(std::span<const float> values, ByteBuffer& out) {
  const auto scale = find_gspar_scale(values);
  if (!scale) return std::unexpected(scale.error());
  // A part of two entries or fewer saves less than the bits that announce it.
  if (scale->entries <= 2) {
    append_all_exact(values, out);
    return {};
  }
  std::array<uint64_t, 3> counts{};
  for (const float value : values) ++counts[symbol_of(value, scale->bits)];
  const Model model = Model::from(counts);
  Buffer<uint16_t> words;
  const uint32_t state = code_symbols(values, scale->bits, model, words);
  if (sizeof(float) + sizeof(state) + words.size() * sizeof(uint16_t) >= scale->entries * sizeof(float)) {
    append_all_exact(values, out);
    return {};
  }
  ByteWriter writer(out);
  writer.put(uint8_t{1});
  writer.put(uint8_t{0});
  writer.put(static_cast<uint16_t>(model.minus));
  writer.put(static_cast<uint16_t>(model.plus));
  writer.put(uint16_t{0});
  writer.put(static_cast<uint32_t>(counts[2]));
  writer.put(scale->bits);
  writer.put(state);
  writer.put_array(std::span<const uint16_t>(words));
  append_exact(values, *scale, out);
  return {};
}

/// The symbols into `out`, an exact entry as its value. nullptr: all is well.
const char* read_symbols(ByteSpan words, ByteSpan exact, uint32_t state, const Model& model, uint32_t scale,
                         std::span<float> out) {
  const uint32_t start_plus = model.minus;
  const uint32_t start_exact = model.minus + model.plus;
  const std::array<uint32_t, 3> frequencies = model.frequencies();
  const uint8_t* word = words.data();
  const uint8_t* const words_end = word + words.size();
  const uint8_t* value = exact.data();
  const uint8_t* const values_end = value + exact.size();
  for (float& entry : out) {
    const uint32_t slot = state & (kFrequencies - 1);
    const uint32_t symbol = (slot >= start_plus ? 1u : 0u) + (slot >= start_exact ? 1u : 0u);
    const uint32_t start = symbol == 2 ? start_exact : symbol * start_plus;
    state = frequencies[symbol] * (state >> kFrequencyBits) + slot - start;
    if (state < kStateMin) {
      if (word == words_end) return "it ends before the last entry";
      uint16_t next;
      std::memcpy(&next, word, sizeof(next));
      word += sizeof(next);
      state = state << 16 | next;
    }
    if (symbol == 2) {
      if (value == values_end) return "more exact entries than there are values";
      std::memcpy(&entry, value, sizeof(float));
      value += sizeof(float);
      if (magnitude_key(entry) >= kInfinityKey) return "values that are not finite";
    } else {
      entry = std::bit_cast<float>(symbol == 1 ? scale : scale | kSignBit);
    }
  }
  return state == kStateMin && word == words_end && value == values_end ? nullptr : "something is left over";
}

Status decode_gspar_entropy_values(ByteSpan bytes, std::span<float> out) {
  const auto header = GsparEntropyHeader::parse(bytes, out.size());
  if (!header) return malformed_gspar_entropy("the length or the header is not that of the values");
  if (header->all_exact) {
    if (!copy_finite(bytes.data() + kGsparEntropyHeaderBytes, out))
      return malformed_gspar_entropy("values that are not finite");
    return {};
  }
  const auto scale = take_scale(bytes.data() + kGsparEntropyHeaderBytes);
  uint32_t state = 0;
  std::memcpy(&state, bytes.data() + kGsparEntropyHeaderBytes + sizeof(float), sizeof(state));
  if (!scale || state < kStateMin) return malformed_gspar_entropy("a scale or a state that cannot be");
  const uint64_t words_at = kGsparEntropyHeaderBytes + sizeof(float) + sizeof(state);
  const uint64_t exact_at = bytes.size() - header->exact * sizeof(float);
  const char* wrong = read_symbols(bytes.subspan(words_at, exact_at - words_at), bytes.subspan(exact_at), state,
                                   header->model, *scale, out);
  return wrong == nullptr ? Status{} : malformed_gspar_entropy(wrong);
}

class GsparEntropyValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId{13}; }
  std::string_view name() const override { return "gspar_entropy"; }
  std::string_view paper() const override { return "[GSpar18, 2.3]"; }
  bool lossless(const CodecSpec&) const override { return true; }
  uint64_t bytes_max(uint64_t count, const CodecSpec&) const override {
    return kGsparEntropyHeaderBytes + count * sizeof(float);
  }
  Status check(ByteSpan bytes, uint64_t count) const override {
    if (GsparEntropyHeader::parse(bytes, count)) return {};
    return malformed_gspar_entropy("the length or the header is not that of the values");
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions&, ByteBuffer& out,
                std::span<float>) const override {
    return encode_gspar_entropy_values(values, out);
  }
  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    return decode_gspar_entropy_values(bytes, out);
  }
};

}  // namespace

const ValueCodec& gspar_entropy_value_codec() {
  static const GsparEntropyValueCodec codec;
  return codec;
}

}  // namespace millrace
