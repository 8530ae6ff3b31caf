// Feeds hostile bytes to the index codecs. A set that decode() accepts is well formed. The vector decoder and the
// bit-by-bit gap decoder agree. An encoded set decodes to itself.
#include <cstring>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/index/gap_blocks.h"

namespace millrace {
namespace {

constexpr uint64_t kDimensionFuzzed = 1 << 16;  // for codecs whose time or memory follows the dimension
constexpr uint64_t kCountFuzzed = 1 << 14;

const IndexCodec& codec_of(uint8_t choice) { return *index_codecs()[choice % 0x80u % index_codecs().size()]; }

void check_set(IndexSpan indices, uint64_t dimension, uint64_t count) {
  MILLRACE_CHECK(indices.size() == count, indices.size(), count);
  for (size_t j = 1; j < indices.size(); ++j) MILLRACE_CHECK(indices[j - 1] < indices[j], j);
  MILLRACE_CHECK(indices.empty() || indices.back() < dimension, dimension);
}

/// Encodes a set and takes it back.
void round_trip(const IndexCodec& codec, IndexSpan indices, uint64_t dimension) {
  ByteBuffer bytes;
  IndexBuffer added;
  MILLRACE_CHECK(codec.encode(indices, dimension, {}, bytes, codec.lossless() ? nullptr : &added).has_value());
  const IndexSpan said = codec.lossless() ? indices : IndexSpan(added);
  IndexBuffer decoded;
  MILLRACE_CHECK(codec.decode(bytes, dimension, said.size(), decoded).has_value(), said.size());
  MILLRACE_CHECK(decoded.size() == said.size() && std::equal(said.begin(), said.end(), decoded.begin()), said.size());
}

void decode_hostile(const IndexCodec& codec, ByteSpan bytes, uint64_t dimension, uint64_t count) {
  IndexBuffer decoded;
  if (!codec.decode(bytes, dimension, count, decoded)) return;
  check_set(decoded, dimension, count);
  round_trip(codec, decoded, dimension);
}

/// The vector decoder of full blocks against the scalar one.
void compare_gap_decoders(ByteSpan bytes, uint64_t dimension, size_t blocks) {
  IndexBuffer one(blocks * kGapBlock);
  IndexBuffer two(blocks * kGapBlock);
  const uint8_t* end = bytes.data() + bytes.size();
  const GapDecoded vector = gap_decode_blocks(bytes.data(), end, blocks, 0, dimension, one.data());
  const GapDecoded scalar = gap_decode_blocks_scalar(bytes.data(), end, blocks, 0, dimension, two.data());
  MILLRACE_CHECK(vector.at == scalar.at, vector.at - bytes.data(), scalar.at - bytes.data());
  if (vector.at == nullptr) return;
  MILLRACE_CHECK(vector.next == scalar.next && one == two, vector.next, scalar.next);
}

/// The bytes as gaps of varying size: sets that no random code would give.
IndexBuffer set_from(ByteSpan bytes, uint64_t dimension) {
  IndexBuffer indices;
  uint64_t next = 0;
  for (size_t j = 0; j + 1 < bytes.size(); j += 2) {
    next += uint64_t{bytes[j]} << (bytes[j + 1] % 25);
    if (next >= dimension) break;
    indices.push_back(static_cast<uint32_t>(next++));
  }
  return indices;
}

void fuzz(ByteSpan bytes) {
  ByteReader reader(bytes);
  const auto choice = reader.get<uint8_t>();
  const auto dimension_drawn = reader.get<uint32_t>();
  const auto count_drawn = reader.get<uint16_t>();
  if (!choice || !dimension_drawn || !count_drawn) return;
  const IndexCodec& codec = codec_of(*choice);
  const bool scans = codec.id() == IndexCodecId::kBitmap || codec.dimension_max() < kDimensionMax;
  const uint64_t dimension = scans ? 1 + *dimension_drawn % kDimensionFuzzed : 1 + uint64_t{*dimension_drawn};
  const ByteSpan rest = *reader.get_bytes(reader.remaining());
  const ByteBuffer exact(rest.begin(), rest.end());  // the sanitizer sees a read behind the end
  if (*choice & 0x80) {
    round_trip(codec, set_from(exact, dimension), dimension);
  } else {
    decode_hostile(codec, exact, dimension, *count_drawn % kCountFuzzed);
    compare_gap_decoders(exact, dimension, *count_drawn % 8);
  }
}

}  // namespace
}  // namespace millrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::fuzz({data, size});
  return 0;
}
