#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/codec/codec.h"
#include "kernels/stream/shared_stream.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// The container of one coded stream; its bytes are in protocol/wire/container.md.
inline constexpr uint64_t kContainerHeaderBytes = 64;
inline constexpr uint8_t kContainerVersion = 1;  ///< raised with every change of the bytes: protocol/wire/versions.md

/// Says how a reader treats decoded values that are NaN or infinite.
enum class NonFinitePolicy : uint8_t { kRefuse = 1, kAccept = 2 };

/// Limits on the containers that a reader decodes. Checked before any memory is taken.
struct ContainerLimits {
  uint64_t dimension = 0;  ///< the only dimension that is accepted; 0: any
  uint64_t count_max = kDimensionMax;
  uint64_t bytes_max = uint64_t{1} << 40;  ///< of the container
  NonFinitePolicy non_finite = NonFinitePolicy::kRefuse;
};

/// The container's header, checked against itself and the length of the bytes.
struct ContainerHeader {
  ValueType value_type = ValueType::kF32;
  bool dense = false;
  IndexCodecId index_codec = IndexCodecId::kNone;  ///< as it stands there: may be one that this build does not know
  ValueCodecId value_codec = ValueCodecId::kRaw;
  uint64_t dimension = 0;
  uint64_t count = 0;
  uint64_t index_bytes = 0;
  uint64_t value_bytes = 0;
  uint64_t coupling_bytes = 0;
  uint64_t checksum = 0;
};

/// A coded stream, ready to send, and its decoded values.
struct EncodedContainer {
  ByteBuffer bytes;
  uint64_t count = 0;            ///< entries that will be decoded
  bool exact = true;             ///< the receiver decodes `selected` itself; `decoded` is then empty
  Stream decoded;                ///< otherwise: the receiver's decoded stream, bit for bit
  uint64_t false_positives = 0;  ///< entries that no worker selected (Bloom)
};

/// Codes `selected` (see append_stream(), kernels/codec/codec.h) into one container.
///
/// Cost     the codecs append to the container's own buffer, which is allocated once.
/// Errors   as the codecs'.
/// Threads  reentrant.
Result<EncodedContainer> encode_container(const StreamView& selected, const StreamView& original,
                                          const EncodeOptions& options);

/// Completes the container of a dense stream: `bytes` is kContainerHeaderBytes of room, and the value code.
///
/// dimension  1 to kDimensionMax.
void seal_dense_container(uint64_t dimension, ValueCodecId codec, ByteBuffer& bytes);

/// A container of raw indices and raw values, and its entries as they lie in it.
struct PlainContainer {
  SharedBytes bytes;
  StreamView stream;  ///< into `bytes`
};

/// Returns encode_container() of a sparse stream with codec "raw+raw", in one pass.
///
/// entries    sparse, well-formed, all indices in [base, base + dimension); they are moved down by base.
/// dimension  1 to kDimensionMax.
PlainContainer plain_container(const StreamView& entries, uint64_t base, uint64_t dimension);

/// Returns the checksum that a whole container carries. It covers every byte of the container but itself, so it is the
/// container's identity (Contribution::payload_hash). Not verified here; read_container() does. Errors  malformed: too
/// short for a header.
Result<uint64_t> container_identity(ByteSpan container);

/// Returns the checksum that these bytes should carry; 0 where they are too short for a container.
uint64_t container_checksum(ByteSpan container);

/// Reads the header of a whole container. Hostile bytes; the checksum is not verified.
///
/// Errors   malformed: too short, magic, fields that contradict each other or the length. unsupported: version, any
///          value type but f32.
Result<ContainerHeader> read_container_header(ByteSpan bytes);

/// Decodes a whole container.
///
/// bytes    hostile, any alignment.
/// Memory   count * kPairBytes and a constant, taken only once the limits, the checksum and the length of the value
///          code agree with count.
/// Errors   as read_container_header(). malformed: checksum, another dimension than expected, a codec's own.
///          limit_exceeded: count_max, bytes_max. unsupported: a codec this build does not know, a coupling section.
///          non_finite: NaN or infinity under NonFinitePolicy::kRefuse.
/// Threads  reentrant.
Result<Stream> read_container(ByteSpan bytes, const ContainerLimits& limits);

/// Returns whether the stream lies in the container as it is: both codecs are raw, and its arrays are aligned. Read off
/// the header, which may be hostile: it only promises that view_container() does not fail because the container is not
/// plain.
bool is_plain(ByteSpan bytes);

/// Reads a plain container in place, as read_container(): returns a view into `bytes`, checked as much.
///
/// Memory   none.
/// Errors   as read_container(); unsupported: not plain.
Result<StreamView> view_container(ByteSpan bytes, const ContainerLimits& limits);

/// Size from which a plain container is viewed. A view keeps the whole buffer into which a message was received. Below
/// this size a copy may take less.
inline constexpr size_t kViewBytesMin = 16'384;

/// Returns whether a received container is viewed where it arrived: it is plain, has an owner and kViewBytesMin bytes.
bool is_viewed(const SharedBytes& payload);

/// Returns the stream of a received container, for as long as it is needed. One that is_viewed() keeps the payload. Any
/// other is decoded.
///
/// payload  hostile.
/// Memory, errors, threads   as read_container().
Result<SharedStream> read_shared_container(const SharedBytes& payload, const ContainerLimits& limits);

}  // namespace millrace
