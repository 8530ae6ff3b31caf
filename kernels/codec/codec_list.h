#pragma once

#include "kernels/codec/codec.h"

/// The codecs of this build, in the order in which lists show them. NAME is NAME.cc in a folder of its kind, which
/// defines NAME_index_codec() or NAME_value_codec(). CMakeLists.txt compiles the files of these lists. Registry,
/// command line, benchmarks, tests and fuzzers read them.
#define MILLRACE_INDEX_CODECS(INDEX_CODEC) \
  INDEX_CODEC(raw)                         \
  INDEX_CODEC(bitmap)                      \
  INDEX_CODEC(gap)                         \
  INDEX_CODEC(elias_gamma)                 \
  INDEX_CODEC(elias_delta)                 \
  INDEX_CODEC(rice)                        \
  INDEX_CODEC(golomb)                      \
  INDEX_CODEC(adaptive)                    \
  INDEX_CODEC(run_length)                  \
  INDEX_CODEC(huffman)                     \
  INDEX_CODEC(roaring)                     \
  INDEX_CODEC(streamvbyte)                 \
  INDEX_CODEC(bloom_naive)                 \
  INDEX_CODEC(bloom_p0)                    \
  INDEX_CODEC(bloom_p1)                    \
  INDEX_CODEC(bloom_p2)                    \
  INDEX_CODEC(bloom_left)                  \
  INDEX_CODEC(bloom_middle)                \
  INDEX_CODEC(bloom_right)                 \
  INDEX_CODEC(bloom_blocked)               \
  INDEX_CODEC(delta_binary)                \
  INDEX_CODEC(delta_huffman)

#define MILLRACE_VALUE_CODECS(VALUE_CODEC) \
  VALUE_CODEC(raw)                         \
  VALUE_CODEC(f16)                         \
  VALUE_CODEC(bf16)                        \
  VALUE_CODEC(qsgd)                        \
  VALUE_CODEC(qsgd_elias)                  \
  VALUE_CODEC(sign_mean)                   \
  VALUE_CODEC(terngrad)                    \
  VALUE_CODEC(onebit)                      \
  VALUE_CODEC(deflate)                     \
  VALUE_CODEC(three_lc)                    \
  VALUE_CODEC(sketchml)                    \
  VALUE_CODEC(skcompress)                  \
  VALUE_CODEC(sketchml_mean)               \
  VALUE_CODEC(skcompress_mean)             \
  VALUE_CODEC(quantile)                    \
  VALUE_CODEC(fit_poly)                    \
  VALUE_CODEC(fit_dexp)                    \
  VALUE_CODEC(gspar_hybrid)                \
  VALUE_CODEC(gspar_entropy)

namespace millrace {

// Only registry.cc and tests of one codec use these; all others use find_index_codec() and find_value_codec().
#define MILLRACE_DECLARE_INDEX_CODEC(word) const IndexCodec& word##_index_codec();
#define MILLRACE_DECLARE_VALUE_CODEC(word) const ValueCodec& word##_value_codec();
MILLRACE_INDEX_CODECS(MILLRACE_DECLARE_INDEX_CODEC)
MILLRACE_VALUE_CODECS(MILLRACE_DECLARE_VALUE_CODEC)
#undef MILLRACE_DECLARE_INDEX_CODEC
#undef MILLRACE_DECLARE_VALUE_CODEC

// For Registry (kernels/base/registry.h).
inline std::string_view name_of(const IndexCodec* codec) { return codec->name(); }
inline std::string_view name_of(const ValueCodec* codec) { return codec->name(); }
inline IndexCodecId number_of(const IndexCodec* codec) { return codec->id(); }
inline ValueCodecId number_of(const ValueCodec* codec) { return codec->id(); }

}  // namespace millrace
