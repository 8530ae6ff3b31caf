#pragma once

#include "kernels/codec/codec.h"

/// The codecs of this build, each an object in the file of its name, in the order in which lists show them. A new one
/// is its file and a word here; the registry, the command line, the benchmarks, the tests and the fuzzers read this.
#define MILLRACE_INDEX_CODECS(CODEC) \
  CODEC(raw)                         \
  CODEC(bitmap)                      \
  CODEC(gap)                         \
  CODEC(elias_gamma)                 \
  CODEC(elias_delta)                 \
  CODEC(rice)                        \
  CODEC(golomb)                      \
  CODEC(adaptive)                    \
  CODEC(run_length)                  \
  CODEC(huffman)                     \
  CODEC(roaring)                     \
  CODEC(streamvbyte)                 \
  CODEC(bloom_naive)                 \
  CODEC(bloom_p0)                    \
  CODEC(bloom_p1)                    \
  CODEC(bloom_p2)                    \
  CODEC(bloom_left)                  \
  CODEC(bloom_middle)                \
  CODEC(bloom_right)                 \
  CODEC(bloom_blocked)               \
  CODEC(delta_binary)                \
  CODEC(delta_huffman)

#define MILLRACE_VALUE_CODECS(CODEC) \
  CODEC(raw)                         \
  CODEC(f16)                         \
  CODEC(bf16)                        \
  CODEC(qsgd)                        \
  CODEC(qsgd_elias)                  \
  CODEC(sign_mean)                   \
  CODEC(terngrad)                    \
  CODEC(onebit)                      \
  CODEC(deflate)                     \
  CODEC(three_lc)                    \
  CODEC(sketchml)                    \
  CODEC(skcompress)                  \
  CODEC(sketchml_mean)               \
  CODEC(skcompress_mean)             \
  CODEC(quantile)                    \
  CODEC(fit_poly)                    \
  CODEC(fit_dexp)                    \
  CODEC(gspar_hybrid)                \
  CODEC(gspar_entropy)

namespace millrace {

// Only registry.cc and tests of one codec use these; all others use find_index_codec() and find_value_codec().
#define MILLRACE_DECLARE_INDEX_CODEC(name) const IndexCodec& name##_index_codec();
#define MILLRACE_DECLARE_VALUE_CODEC(name) const ValueCodec& name##_value_codec();
MILLRACE_INDEX_CODECS(MILLRACE_DECLARE_INDEX_CODEC)
MILLRACE_VALUE_CODECS(MILLRACE_DECLARE_VALUE_CODEC)
#undef MILLRACE_DECLARE_INDEX_CODEC
#undef MILLRACE_DECLARE_VALUE_CODEC

}  // namespace millrace
