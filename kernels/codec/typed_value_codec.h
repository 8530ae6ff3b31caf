#pragma once

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"

namespace millrace {

/// A value codec whose file has one template for both types:
///
///   template <typename T> Status encode_values(std::span<const T>, const EncodeOptions&, ByteBuffer&, std::span<T>) const;
///   template <typename T> Status decode_values(ByteSpan, std::span<T>) const;
template <typename Own>
class TypedValueCodec : public ValueCodec {
 public:
  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const final {
    return encode_typed<float>(values, options, out, decoded);
  }
  Status encode(IndexSpan, std::span<const double> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<double> decoded) const final {
    return encode_typed<double>(values, options, out, decoded);
  }
  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const final {
    return own().template decode_values<float>(bytes, out);
  }
  Status decode(ByteSpan bytes, IndexSpan, std::span<double> out) const final {
    return own().template decode_values<double>(bytes, out);
  }

 private:
  friend Own;
  TypedValueCodec() = default;

  template <typename T>
  Status encode_typed(std::span<const T> values, const EncodeOptions& options, ByteBuffer& out,
                      std::span<T> decoded) const {
    if (!lossless(options.spec)) MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
    return own().template encode_values<T>(values, options, out, decoded);
  }
  const Own& own() const { return static_cast<const Own&>(*this); }
};

}  // namespace millrace
