#include <cstring>

#include "kernels/codec/codec.h"
#include "kernels/stream/stream.h"

namespace millrace {
namespace {

class RawIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId::kRaw; }
  std::string_view name() const override { return "raw"; }
  std::string_view paper() const override { return "[SparCML19, 5.1]: index-value pairs"; }
  bool lossless() const override { return true; }

  uint64_t bytes_estimate(uint64_t count, uint64_t, const CodecSpec&) const override {
    return count * sizeof(uint32_t);
  }

  Status encode(IndexSpan indices, uint64_t, const EncodeOptions&, ByteBuffer& out, IndexBuffer*) const override {
    const size_t at = out.size();
    out.resize(at + indices.size_bytes());
    if (!indices.empty()) std::memcpy(out.data() + at, indices.data(), indices.size_bytes());
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (count > dimension || bytes.size() != count * sizeof(uint32_t)) {
      return fail(ErrorCode::kMalformed, "raw indices: the length is not 4 bytes an index");
    }
    indices.resize(count);
    if (!copy_increasing(bytes.data(), indices) || (count > 0 && indices.back() >= dimension)) {
      return fail(ErrorCode::kMalformed, "raw indices: not strictly increasing below the dimension");
    }
    return {};
  }
};

}  // namespace

const IndexCodec& raw_index_codec() {
  static const RawIndexCodec codec;
  return codec;
}

}  // namespace millrace
