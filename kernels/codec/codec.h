#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// Says how indices become bytes. Numbers are on the wire: never reused. Each codec says its own, in its file
/// (codec_list.h lists them, protocol/wire/index_codecs.md has the table); here are those that other code refers to.
enum class IndexCodecId : uint8_t {
  kNone = 0,    ///< dense stream: no indices
  kRaw = 1,     ///< u32 each
  kBitmap = 2,  ///< one bit per index of the dimension
  kGap = 3,     ///< Rice-coded gaps, entropy-near for uniform indices
  kBloom = 4,   ///< Bloom filter, policy P0 [DeepReduce21, 4]
};

/// Says how values become bytes. Numbers are on the wire: never reused. Each codec says its own, in its file, as index
/// codecs do.
enum class ValueCodecId : uint8_t {
  kRaw = 1,       ///< the values as they are
  kQsgd = 2,      ///< QSGD in buckets
  kF16 = 3,       ///< f16, one exponent a stream
  kBf16 = 4,      ///< the upper halves
  kTernGrad = 6,  ///< 0, or the bucket's largest magnitude with a sign
  kOneBit = 7,    ///< a sign, and two means a bucket
};

/// Holds the parameters of a codec. Part of the job's specification; a tensor may override them. The container carries
/// those that a decoder needs.
struct CodecSpec {
  /// Whether measured cost chooses the codecs (kernels/codec/automatic/codec_choice.h); `index` and `value` are
  /// defaults.
  bool automatic = false;
  IndexCodecId index = IndexCodecId::kGap;
  ValueCodecId value = ValueCodecId::kRaw;
  double bloom_false_positive_rate = 0.001;  ///< kBloom: in [1e-9, 1)
  uint32_t qsgd_bits = 4;                    ///< kQsgd, quantile: 2 to 8
  uint32_t bucket_size = 512;                ///< values that share a scale, of the quantizers that have buckets
  bool qsgd_scale_max = true;                ///< true: bucket maximum; false: L2 norm [QSGD17]
  double sparsity_multiplier = 1.75;         ///< three_lc: of the largest magnitude, in [1, 2); 3LC's s

  bool operator==(const CodecSpec&) const = default;
};

inline constexpr double kBloomRateMin = 1e-9;
inline constexpr uint32_t kBucketSizeMax = 1u << 24;

/// Refuses parameters that cannot be (bits not 2 to 8, a rate outside [1e-9, 1), ...).
Status validate(const CodecSpec& spec);

/// Parses "auto", "gap", "raw+qsgd4", "bloom:0.01+raw", "gap+qsgd8:l2", "gap+qsgd2:max:1024"; the reverse is
/// codec_text() (parameters of codecs that the specification does not use are not in the text).
Result<CodecSpec> codec_from_text(std::string_view text);
std::string codec_text(const CodecSpec& spec);

struct EncodeOptions {
  CodecSpec spec;
  RandomKey random;         ///< stochastic rounding; and the seed of Bloom hashes (which travels)
  uint64_t index_base = 0;  ///< global index of local index 0: counters are cut by global index
};

/// Codes a strictly increasing index set of [0, dimension).
///
/// Threads  const and reentrant: one object serves all threads.
class IndexCodec {
 public:
  virtual ~IndexCodec() = default;
  virtual IndexCodecId id() const = 0;
  virtual std::string_view name() const = 0;
  virtual std::string_view paper() const = 0;  ///< "[SparCML19, 5.1]: index-value pairs" (kernels/REFERENCES.md)
  virtual bool lossless() const = 0;

  /// Returns the largest dimension that encode() and decode() take.
  virtual uint64_t dimension_max() const { return kDimensionMax; }

  /// Returns whether CodecSpec::bloom_false_positive_rate is a parameter of it.
  virtual bool takes_rate() const { return false; }

  /// Returns about how many bytes encode() will append (uniform indices): to reserve memory and to plan. Not a bound.
  virtual uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec& spec) const = 0;

  /// Appends the code to `out`. A lossy codec writes into *decoded the set that decode() will return (a superset for
  /// Bloom P0). A lossless one does not change it.
  virtual Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions& options, ByteBuffer& out,
                        IndexBuffer* decoded) const = 0;

  /// Decodes exactly `count` indices. The bytes are hostile: any input gives a strictly increasing set of `count`
  /// indices below `dimension`, or an error. Memory: twice the indices, the bytes once more and 1 MiB; bloom_p2's is in
  /// kernels/codec/bloom/DESIGN.md.
  ///
  /// Errors   malformed.
  virtual Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const = 0;

  /// Returns a bound of the memory that decode() with these arguments takes beyond that. Reads the first bytes only.
  virtual uint64_t decode_scratch_bytes(ByteSpan, uint64_t /*dimension*/, uint64_t /*count*/) const { return 0; }
};

/// Codes the values of a stream.
///
/// Threads  const and reentrant.
class ValueCodec {
 public:
  virtual ~ValueCodec() = default;
  virtual ValueCodecId id() const = 0;
  virtual std::string_view name() const = 0;
  virtual std::string_view paper() const = 0;  ///< "[SparCML19, 5.1]: index-value pairs" (kernels/REFERENCES.md)
  virtual bool lossless(const CodecSpec& spec) const = 0;

  /// Return how a job may treat the error. The error of a contraction may stay in a residual. |v - decoded| <= c |v|
  /// with c < 1 over a stream, in expectation where it rounds at random. An unbiased codec has E[decoded] = v.
  /// Limit: rounding draws 24 bits, and computes in f32. The mean may differ from v by 2^-24 of the distance of two
  /// levels and 2^-22 of v.
  virtual bool contraction(const CodecSpec& spec) const { return lossless(spec); }
  virtual bool unbiased(const CodecSpec& spec) const { return lossless(spec); }

  /// Convert between a codec's parameters and its name in a codec's text. parse() sets them in `spec` (false: not a
  /// word of this codec), text() is the reverse. help_text() is for help. A codec without parameters has its name.
  virtual bool parse(std::string_view text, CodecSpec& spec) const;
  virtual std::string text(const CodecSpec& spec) const;
  virtual std::string help_text() const;

  /// Refuses parameters of this codec that cannot be.
  virtual Status validate(const CodecSpec& spec) const;

  /// Returns a bound of the bytes that encode() appends; codecs of fixed length append as many.
  virtual uint64_t bytes_max(uint64_t count, const CodecSpec& spec) const = 0;

  /// Refuses bytes that do not code exactly `count` values, as far as their size and parameters tell: asked before
  /// memory for the values is taken.
  ///
  /// Errors   malformed.
  virtual Status check(ByteSpan bytes, uint64_t count) const = 0;

  /// Appends the code of `values` to `out`; writes what will be decoded into `decoded` (same size) unless lossless.
  /// `indices` are those of the values (empty: dense), for codecs whose randomness or buckets follow the index.
  virtual Status encode(IndexSpan indices, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                        std::span<float> decoded) const = 0;

  /// Decodes exactly out.size() values, all finite where the codec can tell; hostile bytes give an error. `indices` are
  /// those that the index code gave (empty: dense), for codecs that encode by them. Memory: that of `out` once more,
  /// and 1 MiB.
  virtual Status decode(ByteSpan bytes, IndexSpan indices, std::span<float> out) const = 0;
};

/// Bytes over bytes_estimate() that an index codec may need as working room in `out` while it encodes uniform indices.
inline constexpr uint64_t kIndexCodecSlack = 8192;

/// Return every codec of this build, and look one up; nullptr: unknown.
std::span<const IndexCodec* const> index_codecs();
std::span<const ValueCodec* const> value_codecs();
const IndexCodec* find_index_codec(IndexCodecId id);
const ValueCodec* find_value_codec(ValueCodecId id);

/// Returns the specification with gap in place of a lossy index codec, and raw in place of a lossy value codec.
/// REQUIRES: validate(spec) holds.
CodecSpec without_loss(const CodecSpec& spec);
/// Returns whether a code by the specification may change a value or add an entry. REQUIRES: validate(spec) holds.
inline bool is_lossy(const CodecSpec& spec) { return without_loss(spec) != spec; }

/// Returns the names that codec_from_text() takes, for help and errors: "raw, bitmap, gap, ...".
std::string index_codec_names();
std::string value_codec_names();

/// Describes the code of a stream.
struct StreamCoding {
  IndexCodecId index_codec = IndexCodecId::kNone;
  ValueCodecId value_codec = ValueCodecId::kRaw;
  uint64_t dimension = 0;
  uint64_t count = 0;  ///< entries that will be decoded
  bool dense = false;
  bool exact = true;             ///< the receiver decodes `selected` itself; `decoded` is then empty
  Stream decoded;                ///< otherwise: the receiver's decoding, bit for bit
  uint64_t false_positives = 0;  ///< entries that were not selected (Bloom)
};

/// A stream as bytes of its two codecs, before the container wraps them (protocol/container/container.h), and what will
/// be decoded.
struct CodedStream : StreamCoding {
  ByteBuffer index_bytes;
  ByteBuffer value_bytes;
};

/// Codes `selected` with the codecs of `options.spec`.
///
/// selected  well-formed; a dense stream uses no index codec.
/// original  the stream of the selection (the accumulator, the whole sum): gives values to entries that an index codec
///           adds ([DeepReduce21, 4], policy P0). Dense or sparse; absent entries are 0. Empty dimension (0): added
///           entries are 0.
/// Errors    as the codecs'.
Result<CodedStream> encode_stream(const StreamView& selected, const StreamView& original, const EncodeOptions& options);

/// Appends the same to the caller's buffers; both may be one buffer (the container's), which then gets the index code
/// followed by the value code. On an error the appended bytes are unspecified.
Result<StreamCoding> append_stream(const StreamView& selected, const StreamView& original, const EncodeOptions& options,
                                   ByteBuffer& index_out, ByteBuffer& value_out, uint64_t& index_bytes);

}  // namespace millrace
