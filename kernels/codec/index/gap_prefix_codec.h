#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/check.h"
#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/codec.h"

namespace millrace {

/// A gap that no code may say: indices are below 2^32.
inline constexpr uint64_t kGapMax = (uint64_t{1} << 32) - 1;

/// Codes indices by a prefix code of every gap, one behind the other, after the parameters of the code. A gap is the
/// index less the previous one less 1; the first is the index. A code of no indices has no bytes.
///
/// Code   struct with
///        - static Code choose(IndexSpan indices);   the best parameters for them; there is an index at least
///        - void put_header(ByteBuffer&) const;
///        - static std::optional<Code> take_header(ByteSpan& bytes);   hostile; leaves the bytes behind it
///        - void put(BitWriter&, uint32_t gap) const;
///        - uint64_t take(BitReader&) const;   hostile; over kGapMax, and far below 2^64: malformed
template <typename Code>
class GapBitsCodec : public IndexCodec {
 public:
  bool lossless() const final { return true; }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions&, ByteBuffer& out,
                IndexBuffer*) const final {
    if (indices.empty()) return {};
    MILLRACE_CHECK(indices.back() < dimension, indices.back(), dimension);
    const Code code = Code::choose(indices);
    code.put_header(out);
    BitWriter writer(out);
    uint64_t next = 0;
    for (const uint32_t index : indices) {
      code.put(writer, static_cast<uint32_t>(index - next));
      next = uint64_t{index} + 1;
    }
    writer.finish();
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const final {
    if (count == 0) {
      indices.clear();
      return bytes.empty() ? Status{} : malformed("bytes for no indices");
    }
    const auto code = Code::take_header(bytes);
    // Every index takes a bit at least: no memory for a count that the bytes cannot hold.
    if (!code || count > dimension || count / 8 > bytes.size()) return malformed("parameters or length cannot be");
    indices.resize(count);
    BitReader reader(bytes);
    uint64_t next = 0;
    for (uint32_t& index : indices) {
      next += code->take(reader);
      if (next >= dimension) return malformed("out of range or cut off");
      index = static_cast<uint32_t>(next++);
    }
    return reader.at_end() ? Status{} : malformed("cut off or with bytes left over");
  }

 private:
  Status malformed(const char* what) const {
    return fail(ErrorCode::kMalformed, std::string(this->name()) + " code: " + what);
  }
};

/// Returns the mean gap of `count` indices of a dimension.
inline double mean_gap(uint64_t count, uint64_t dimension) {
  return count == 0 ? 0.0 : static_cast<double>(dimension - count) / static_cast<double>(count);
}

}  // namespace millrace
