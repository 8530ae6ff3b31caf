#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"

namespace millrace::testing {

/// Specifications that differ for this codec: its bits, scales and buckets, where it has them.
inline std::vector<CodecSpec> specs_of(const ValueCodec& codec) {
  std::vector<CodecSpec> specs;
  std::set<std::string> seen;
  for (const uint32_t bits : {4u, 2u, 3u, 5u, 8u}) {
    for (const bool scale_max : {true, false}) {
      for (const uint32_t bucket_size : {512u, 7u}) {
        CodecSpec spec;
        spec.value = codec.id();
        spec.qsgd_bits = bits;
        spec.qsgd_scale_max = scale_max;
        spec.bucket_size = bucket_size;
        if (!seen.insert(codec.text(spec)).second) continue;
        specs.push_back(codec_from_text("raw+" + codec.text(spec)).value());
      }
    }
  }
  return specs;
}

/// Calls each(codec, spec) for all of them.
template <typename Each>
void for_each_value_codec(const Each& each) {
  for (const ValueCodec* codec : value_codecs()) {
    for (const CodecSpec& spec : specs_of(*codec)) {
      SCOPED_TRACE(codec->text(spec));
      each(*codec, spec);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

inline bool same_value_bits(const std::vector<float>& one, const std::vector<float>& other) {
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0);
}

/// A code, and the values that the encoder announces as the result of decoding (lossless codec: the values themselves).
struct CodedValues {
  Status status;
  ByteBuffer bytes;
  std::vector<float> said;
};

inline IndexBuffer some_indices(size_t count) {
  IndexBuffer indices(count);
  for (size_t i = 0; i < count; ++i) indices[i] = static_cast<uint32_t>(3 * i + 1);
  return indices;
}

inline CodedValues code_values(const ValueCodec& codec, const CodecSpec& spec, const std::vector<float>& values,
                               RandomKey random = {3, 4}, uint64_t index_base = 0) {
  CodedValues coded;
  const bool lossless = codec.lossless(spec);
  if (!lossless) coded.said.resize(values.size());
  coded.status = codec.encode(some_indices(values.size()), std::span<const float>(values), {spec, random, index_base},
                              coded.bytes, std::span<float>(coded.said));
  if (lossless) coded.said = values;
  return coded;
}

inline Status decode_values(const ValueCodec& codec, ByteSpan bytes, std::vector<float>& values) {
  return codec.decode(bytes, some_indices(values.size()), std::span<float>(values));
}

inline std::vector<uint8_t> listed(const ByteBuffer& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace millrace::testing
