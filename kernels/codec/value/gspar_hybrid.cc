// [GSpar18, 2.3], the hybrid coding of Q_A (exact values) and Q_B (one float and a sign each). The paper sends the two
// with coordinates of their own; here one index code has them all, and marks separate them. The marks take min(|A|,
// |B|) ceil(log2 k) bits or k. One sorted index set saves more than that over coordinates of log2 d bits
// (tests/kernels/codec/codec_gspar_test.cc). Theorem 4 leaves out the signs of Q_B, |B| bits; they are sent.
#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value/gspar_parts.h"

namespace millrace {
namespace {

constexpr uint64_t kGsparHybridHeaderBytes = 8;

enum class Marks : uint8_t { kAllExact = 0, kBitmap = 1, kExact = 2, kSigned = 3 };

std::unexpected<Error> malformed_gspar_hybrid(const char* what) {
  return fail(ErrorCode::kMalformed, std::string("gspar_hybrid: ") + what);
}

uint64_t gspar_hybrid_bytes_of_bits(uint64_t bits) { return (bits + 7) / 8; }

uint64_t marks_bytes(Marks marks, uint64_t count, uint64_t exact) {
  switch (marks) {
    case Marks::kAllExact: return 0;
    case Marks::kBitmap: return gspar_hybrid_bytes_of_bits(count);
    case Marks::kExact: return gspar_hybrid_bytes_of_bits(exact * number_bits(count));
    case Marks::kSigned: return gspar_hybrid_bytes_of_bits((count - exact) * number_bits(count));
  }
  return 0;
}

/// Holds the positions in a code of `count` values.
struct Layout {
  Marks marks = Marks::kAllExact;
  uint64_t count = 0;
  uint64_t exact = 0;

  uint64_t marks_at() const { return kGsparHybridHeaderBytes + (marks == Marks::kAllExact ? 0 : sizeof(float)); }
  uint64_t signs_at() const { return marks_at() + marks_bytes(marks, count, exact); }
  uint64_t values_at() const { return signs_at() + gspar_hybrid_bytes_of_bits(count - exact); }
  uint64_t bytes() const { return values_at() + exact * sizeof(float); }

  static std::optional<Layout> parse(ByteSpan bytes, uint64_t count) {
    ByteReader reader(bytes);
    const auto mode = reader.get<uint8_t>();
    const auto zeros = reader.get_bytes(3);
    const auto exact = reader.get<uint32_t>();
    if (!mode || !zeros || !exact || count > kDimensionMax || *mode > static_cast<uint8_t>(Marks::kSigned)) {
      return std::nullopt;
    }
    for (const uint8_t zero : *zeros) {
      if (zero != 0) return std::nullopt;
    }
    if (*mode == 0) {
      return *exact == 0 ? std::optional(Layout{Marks::kAllExact, count, count}) : std::nullopt;
    }
    if (*exact >= count) return std::nullopt;
    return Layout{static_cast<Marks>(*mode), count, *exact};
  }
};

Layout smallest_layout(uint64_t count, uint64_t exact) {
  Layout best{Marks::kAllExact, count, count};
  if (exact == count) return best;
  for (const Marks marks : {Marks::kBitmap, Marks::kExact, Marks::kSigned}) {
    const Layout layout{marks, count, exact};
    if (layout.bytes() < best.bytes()) best = layout;
  }
  return best;
}

void append_marks(std::span<const float> values, const GsparScale& scale, Marks marks, ByteBuffer& out) {
  BitWriter writer(out);
  if (marks == Marks::kBitmap) {
    for (size_t begin = 0; begin < values.size(); begin += 32) {
      const auto block = values.subspan(begin, std::min<size_t>(32, values.size() - begin));
      uint64_t bits = 0;
      for (size_t j = 0; j < block.size(); ++j) bits |= uint64_t{magnitude_key(block[j]) != scale.bits} << j;
      writer.put(bits, static_cast<uint32_t>(block.size()));
    }
  } else {
    const uint32_t width = number_bits(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const bool exact = magnitude_key(values[i]) != scale.bits;
      if (exact == (marks == Marks::kExact)) writer.put(i, width);
    }
  }
  writer.finish();
}

void append_signs(std::span<const float> values, const GsparScale& scale, ByteBuffer& out) {
  constexpr uint32_t kFull = 48;
  BitWriter writer(out);
  uint64_t bits = 0;
  uint32_t filled = 0;
  for (const float value : values) {
    const bool in_part = magnitude_key(value) == scale.bits;
    bits |= uint64_t{in_part && (std::bit_cast<uint32_t>(value) & kSignBit) != 0} << filled;
    filled += in_part ? 1 : 0;
    if (filled == kFull) {
      writer.put(bits, kFull);
      bits = 0;
      filled = 0;
    }
  }
  writer.put(bits, filled);
  writer.finish();
}

Status encode_gspar_hybrid_values(std::span<const float> values, ByteBuffer& out) {
  const auto scale = find_gspar_scale(values);
  if (!scale) return std::unexpected(scale.error());
  const uint64_t exact = values.size() - scale->entries;
  const Layout layout = smallest_layout(values.size(), exact);
  const size_t start = out.size();
  ByteWriter writer(out);
  writer.put(layout.marks);
  writer.put(std::array<uint8_t, 3>{});
  if (layout.marks == Marks::kAllExact) {
    writer.put(uint32_t{0});
    writer.put_array(values);
    return {};
  }
  writer.put(static_cast<uint32_t>(exact));
  writer.put(scale->bits);
  append_marks(values, *scale, layout.marks, out);
  append_signs(values, *scale, out);
  append_exact(values, *scale, out);
  MILLRACE_CHECK(out.size() - start == layout.bytes(), out.size() - start, layout.bytes());
  return {};
}

/// Puts entries of either part one behind the other.
class Merge {
 public:
  Merge(ByteSpan bytes, const Layout& layout, uint32_t scale, std::span<float> out)
      : signs_(bytes.subspan(layout.signs_at(), layout.values_at() - layout.signs_at())),
        exact_(bytes.subspan(layout.values_at())),
        scale_(scale),
        out_(out) {}

  uint64_t place() const { return at_; }

  void put_signed(uint64_t count) {
    constexpr uint64_t kAtOnce = 48;
    for (uint64_t left = count; left > 0;) {
      const uint64_t some = std::min(left, kAtOnce);
      const uint64_t bits = signs_.take(static_cast<uint32_t>(some));
      for (uint64_t j = 0; j < some; ++j) {
        const uint32_t sign = static_cast<uint32_t>(bits >> j) << 31;
        out_[at_ + j] = std::bit_cast<float>(scale_ | sign);
      }
      at_ += some;
      left -= some;
    }
  }
  void put_exact(uint64_t count) {
    finite_ &= copy_finite(exact_.data(), out_.subspan(at_, count));
    exact_ = exact_.subspan(count * sizeof(float));
    at_ += count;
  }
  bool finished() const { return finite_ && signs_.at_end(); }

 private:
  BitReader signs_;
  ByteSpan exact_;
  uint32_t scale_;
  std::span<float> out_;
  uint64_t at_ = 0;
  bool finite_ = true;
};

/// Positions in increasing order, off hostile bytes: of the set bits of a bitmap, or listed. nullopt: they do not
/// increase.
template <typename Take>
bool each_position(ByteSpan marks, const Layout& layout, const Take& take) {
  if (layout.marks == Marks::kBitmap) {
    for (uint64_t at = 0; at < marks.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, marks.data() + at, std::min<uint64_t>(8, marks.size() - at));
      for (; word != 0; word &= word - 1) {
        if (!take(at * 8 + static_cast<uint64_t>(std::countr_zero(word)))) return false;
      }
    }
    return true;
  }
  const uint64_t listed = layout.marks == Marks::kExact ? layout.exact : layout.count - layout.exact;
  const uint32_t width = number_bits(layout.count);
  BitReader reader(marks);
  for (uint64_t j = 0; j < listed; ++j) {
    if (!take(reader.take(width))) return false;
  }
  return reader.at_end();
}

Status decode_parts(ByteSpan bytes, const Layout& layout, std::span<float> out) {
  const auto scale = take_scale(bytes.data() + kGsparHybridHeaderBytes);
  if (!scale) return malformed_gspar_hybrid("the scale is no finite magnitude");
  Merge merge(bytes, layout, *scale, out);
  const bool list_signed = layout.marks == Marks::kSigned;
  uint64_t listed = list_signed ? layout.count - layout.exact : layout.exact;
  const ByteSpan marks = bytes.subspan(layout.marks_at(), layout.signs_at() - layout.marks_at());
  const bool increasing = each_position(marks, layout, [&](uint64_t position) {
    if (position < merge.place() || position >= layout.count || listed == 0) return false;
    --listed;
    const uint64_t between = position - merge.place();
    // More than there can be of the other part: the rest will have fewer marks.
    if (between > layout.count - merge.place() - listed - 1) return false;
    if (list_signed) {
      merge.put_exact(between);
      merge.put_signed(1);
    } else {
      merge.put_signed(between);
      merge.put_exact(1);
    }
    return true;
  });
  if (!increasing || listed != 0) return malformed_gspar_hybrid("the marks are not those of that many entries");
  const uint64_t rest = layout.count - merge.place();
  if (list_signed) {
    merge.put_exact(rest);
  } else {
    merge.put_signed(rest);
  }
  return merge.finished() ? Status{}
                          : malformed_gspar_hybrid("values that are not finite, or signs that are no entry's");
}

Status decode_gspar_hybrid_values(ByteSpan bytes, std::span<float> out) {
  const auto layout = Layout::parse(bytes, out.size());
  if (!layout || layout->bytes() != bytes.size()) return malformed_gspar_hybrid("the length is not that of the values");
  if (layout->marks != Marks::kAllExact) return decode_parts(bytes, *layout, out);
  if (!copy_finite(bytes.data() + kGsparHybridHeaderBytes, out))
    return malformed_gspar_hybrid("values that are not finite");
  return {};
}

class GsparHybridValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId{12}; }
  std::string_view name() const override { return "gspar_hybrid"; }
  std::string_view paper() const override { return "[GSpar18, 2.3]"; }
  bool lossless(const CodecSpec&) const override { return true; }
  uint64_t bytes_max(uint64_t count, const CodecSpec&) const override {
    return kGsparHybridHeaderBytes + count * sizeof(float);
  }
  Status check(ByteSpan bytes, uint64_t count) const override {
    const auto layout = Layout::parse(bytes, count);
    if (!layout || layout->bytes() != bytes.size())
      return malformed_gspar_hybrid("the length is not that of the values");
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions&, ByteBuffer& out,
                std::span<float>) const override {
    return encode_gspar_hybrid_values(values, out);
  }
  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    return decode_gspar_hybrid_values(bytes, out);
  }
};

}  // namespace

const ValueCodec& gspar_hybrid_value_codec() {
  static const GsparHybridValueCodec codec;
  return codec;
}

}  // namespace millrace
