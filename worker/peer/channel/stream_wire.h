#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/base/result.h"
#include "kernels/codec/codec.h"
#include "kernels/stream/shared_stream.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/message_body.h"
#include "worker/peer/channel/reduce_op.h"

namespace millrace::peer {

/// Says how streams travel between ranks. Without a codec a sparse one is its values and indices, a dense one its
/// values.
struct WireForm {
  /// Of a rank's contribution: may be lossy; the loss is returned to the rank.
  std::optional<CodecSpec> contribution;
  /// Of sums: lossless. lossless_of() makes it of the other.
  std::optional<CodecSpec> sums;
  RandomKey random;  ///< of stochastic rounding: the same on all ranks of one step, each adds its own number
};

/// Returns whether a rank's contribution may get entries that no selection chose, with values of the rest beside it.
inline bool fills_from_rest(const WireForm& wire) {
  return wire.contribution && !find_index_codec(wire.contribution->index)->lossless();
}

/// Returns the same index codec where that is lossless, gap where it is lossy; raw values.
CodecSpec lossless_of(const CodecSpec& codec);
/// Returns "raw", or the text of the codec.
std::string wire_text(const std::optional<CodecSpec>& codec);

/// Holds a packet and its stream: bit for bit the receiver's decoding.
struct Packed {
  Packet packet;
  SharedStream decoded;
};

/// Packs the entries of `stream` in [begin, end), as a stream of dimension end - begin, without a codec.
///
/// memory   where the body is written.
/// Cost     one copy. An empty slice has no body; it is read as an empty sparse stream.
Packet pack_range(const StreamView& stream, uint64_t begin, uint64_t end, BodyMemory& memory = heap_bodies());

/// Says which form a sparse stream's slices have.
enum class SliceForm : uint8_t {
  kSmaller = 1,  ///< dense where that is smaller
  kSparse = 2,
};

/// Packs all slices of `stream` at once, [bounds.size() - 1], in one allocation that they share, so that thousands of
/// small ones are cheap. A dense stream with an owner is looked into and not copied.
///
/// bounds   ascending, from 0 to the dimension.
/// neutral  where a slice that becomes dense has no entry.
/// memory   where the bodies are written.
std::vector<Packet> pack_slices(const SharedStream& stream, std::span<const uint64_t> bounds, float neutral,
                                SliceForm form = SliceForm::kSmaller, BodyMemory& memory = heap_bodies());

/// Packs the whole stream, with `codec` where there is one: of a sum, beside which nothing is kept. REQUIRES: begin of
/// the slice in the tensor is `base`.
///
/// memory   where the body is written without a codec.
/// Errors   as the codec's.
Result<Packed> pack(const SharedStream& stream, const std::optional<CodecSpec>& codec, RandomKey random,
                    uint64_t base = 0, BodyMemory& memory = heap_bodies());

/// Packs a contribution, with its codec. REQUIRES: begin of the slice in the tensor is `options.index_base`.
///
/// rest     what its rank keeps beside it (Contribution::rest), of the stream's dimension or of dimension 0.
/// Errors   as the codec's.
Result<Packed> pack_contribution(const SharedStream& stream, const StreamView& rest, const EncodeOptions& options);

/// Returns the stream of a packet: a view into it where it has the stream's form.
///
/// dimension  of the slice; the only one accepted.
/// op         whose neutral element a dense stream has where no rank had an entry; default: a sum's, 0.
/// Errors     malformed: another form than a stream's, sizes that do not fit, indices not strictly increasing or out of
///            range; a container's own. non_finite: NaN or infinity, unless it is the neutral element.
Result<SharedStream> unpack(const Packet& packet, uint64_t dimension, const ReduceOp& op = {});

/// Says whether the entries were checked: strictly increasing indices in range, values finite or neutral.
enum class Checked : uint8_t {
  kYes = 1,
  kNo = 2,
};

/// Holds a stream that is about to be copied, and whether the copy has to check its entries.
struct Piece {
  SharedStream stream;
  Checked entries = Checked::kYes;
};

/// Unpacks without a pass over entries that are views: for join(), which copies them and checks them on the way.
/// Errors   unpack()'s, except those that the copying caller checks.
Result<Piece> unpack_unchecked(const Packet& packet, uint64_t dimension, const ReduceOp& op = {});

/// Unpacks the addend of combine(). Of dense values, the sum shows that one was NaN or infinite, so they are not
/// checked twice.
Result<SharedStream> unpack_addend(const Packet& packet, uint64_t dimension, const ReduceOp& op);

/// Checks the entries of a piece that were not checked. Errors  those that unpack_unchecked() left.
Status check_piece(const ReduceOp& op, const Piece& piece);
/// Returns the error for a value that is NaN or infinite.
Error diverged();

/// Packs plain numbers of an algorithm, and unpacks them. Errors  malformed: another form, or a length that is no
/// multiple of a number's.
template <typename N>
Packet pack_numbers(std::span<const N> numbers);
template <typename N>
Result<std::vector<N>> unpack_numbers(const Packet& packet);

}  // namespace millrace::peer
