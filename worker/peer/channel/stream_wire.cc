#include "worker/peer/channel/stream_wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/stream/stream_scan.h"
#include "protocol/container/container.h"

namespace millrace::peer {
namespace {

Error bad_body(size_t bytes, const char* what) {
  return {ErrorCode::kMalformed, "a peer's message of " + std::to_string(bytes) + " bytes is not " + what};
}

Result<SharedStream> unpack_dense(const Packet& packet, uint64_t dimension) {
  const ByteSpan bytes = packet.body.bytes;
  if (bytes.size() / sizeof(float) != dimension || bytes.size() % sizeof(float) != 0) {
    return std::unexpected(bad_body(bytes.size(), ("a dense slice of " + std::to_string(dimension)).c_str()));
  }
  StreamView view{dimension, true, {}, {reinterpret_cast<const float*>(bytes.data()), dimension}};
  return SharedStream::within(packet.body, view);
}

/// The order of the indices is not looked at.
Result<SharedStream> look_into_pairs(const Packet& packet, uint64_t dimension) {
  const ByteSpan bytes = packet.body.bytes;
  if (bytes.size() % kPairBytes != 0) return std::unexpected(bad_body(bytes.size(), "pairs"));
  const size_t count = bytes.size() / kPairBytes;
  if (count > dimension) {
    return std::unexpected(bad_body(bytes.size(), ("pairs of a slice of " + std::to_string(dimension)).c_str()));
  }
  StreamView view{dimension, false, {}, {}};
  view.values = {reinterpret_cast<const float*>(bytes.data()), count};
  view.indices = {reinterpret_cast<const uint32_t*>(bytes.data() + count * sizeof(float)), count};
  return SharedStream::within(packet.body, view);
}

Result<SharedStream> unpack_pairs(const Packet& packet, uint64_t dimension) {
  Result<SharedStream> stream = look_into_pairs(packet, dimension);
  if (!stream) return stream;
  if (Status status = validate(stream->view); !status) return std::unexpected(status.error());
  return stream;
}

Result<SharedStream> unpack_form(const Packet& packet, uint64_t dimension) {
  switch (packet.form) {
    case BodyForm::kPairs: return unpack_pairs(packet, dimension);
    case BodyForm::kDense: return unpack_dense(packet, dimension);
    case BodyForm::kContainer:
      return read_shared_container(
          packet.body,
          {.dimension = dimension, .bytes_max = packet.body.bytes.size(), .non_finite = NonFinitePolicy::kAccept});
    case BodyForm::kNone:
    case BodyForm::kNumbers: break;
  }
  return std::unexpected(bad_body(packet.body.bytes.size(), "a stream"));
}

/// The entries in positions [first, last), as pairs whose indices count from `base`.
void write_pairs(const StreamView& stream, size_t first, size_t last, uint64_t base, uint8_t* out) {
  const size_t count = last - first;
  if (count == 0) return;
  std::memcpy(out, stream.values.data() + first, count * sizeof(float));
  moved_down(stream.indices.data() + first, count, static_cast<uint32_t>(base),
             reinterpret_cast<uint32_t*>(out + count * sizeof(float)));
}

/// The same entries among neutral elements.
void write_dense(const StreamView& stream, size_t first, size_t last, uint64_t base, std::span<float> out,
                 float neutral) {
  std::ranges::fill(out, neutral);
  for (size_t i = first; i < last; ++i) out[stream.indices[i] - base] = stream.values[i];
}

/// Where a slice's entries are in its stream, and its bytes in the buffer of all slices.
struct SlicePlace {
  size_t first = 0;
  size_t last = 0;
  size_t begin = 0;
  size_t length = 0;
  bool dense = false;
};

/// A body begins at a multiple of 8.
constexpr size_t stream_wire_padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

/// Returns the first position from `from` on whose index is `bound` or more. It is found in steps that double, since
/// the next slice's begin is near where there are many.
size_t position_of(IndexSpan indices, size_t from, uint64_t bound) {
  size_t step = 1, end = from;
  while (end < indices.size() && indices[end] < bound) {
    from = end + 1;
    end += step;
    step *= 2;
  }
  const auto last = indices.begin() + static_cast<ptrdiff_t>(std::min(end, indices.size()));
  return static_cast<size_t>(std::lower_bound(indices.begin() + static_cast<ptrdiff_t>(from), last, bound) -
                             indices.begin());
}

std::vector<SlicePlace> places_of(IndexSpan indices, std::span<const uint64_t> bounds, SliceForm form) {
  std::vector<SlicePlace> places(bounds.size() - 1);
  SlicePlace before;
  for (size_t i = 0; i < places.size(); ++i) {
    SlicePlace& place = places[i];
    place.first = before.last;
    place.last = position_of(indices, place.first, bounds[i + 1]);
    place.begin = before.begin + stream_wire_padded(before.length);
    const uint64_t dimension = bounds[i + 1] - bounds[i];
    const size_t count = place.last - place.first;
    place.dense = form == SliceForm::kSmaller && count != 0 && count >= dense_from_count(dimension);
    place.length = place.dense ? dimension * sizeof(float) : count * kPairBytes;
    before = place;
  }
  return places;
}

/// The values of a dense stream, where they lie.
SharedBytes bytes_within(const SharedStream& stream) {
  return {stream.owner, {reinterpret_cast<const uint8_t*>(stream.view.values.data()), stream.view.values.size_bytes()}};
}

}  // namespace

CodecSpec lossless_of(const CodecSpec& codec) {
  CodecSpec spec;
  const IndexCodec* index = find_index_codec(codec.index);
  spec.index = index != nullptr && index->lossless() ? codec.index : IndexCodecId::kGap;
  spec.value = ValueCodecId::kRaw;
  return spec;
}

std::string wire_text(const std::optional<CodecSpec>& codec) { return codec ? codec_text(*codec) : "raw"; }

Packet pack_range(const StreamView& stream, uint64_t begin, uint64_t end, BodyMemory& memory) {
  MILLRACE_CHECK(begin <= end && end <= stream.dimension, begin, end, stream.dimension);
  if (stream.dense) {
    WritableBody body = memory.take_body((end - begin) * sizeof(float));
    if (begin < end) std::memcpy(body.bytes.data(), stream.values.data() + begin, body.bytes.size());
    return {BodyForm::kDense, std::move(body).share()};
  }
  const auto [first, last] = range_of(stream.indices, begin, end);
  if (first == last) return {BodyForm::kPairs, {}};
  WritableBody body = memory.take_body((last - first) * kPairBytes);
  write_pairs(stream, first, last, begin, body.bytes.data());
  return {BodyForm::kPairs, std::move(body).share()};
}

std::vector<Packet> pack_slices(const SharedStream& stream, std::span<const uint64_t> bounds, float neutral,
                                SliceForm form, BodyMemory& memory) {
  const StreamView& view = stream.view;
  MILLRACE_CHECK(!bounds.empty() && bounds.front() == 0 && bounds.back() == view.dimension, bounds.size());
  std::vector<Packet> packets(bounds.size() - 1);
  if (view.dense) {
    const SharedBytes all = stream.owner ? bytes_within(stream) : pack_range(view, 0, view.dimension, memory).body;
    for (size_t i = 0; i < packets.size(); ++i) {
      const ByteSpan slice = all.bytes.subspan(bounds[i] * sizeof(float), (bounds[i + 1] - bounds[i]) * sizeof(float));
      packets[i] = {BodyForm::kDense, {all.owner, slice}};
    }
    return packets;
  }
  const std::vector<SlicePlace> places = places_of(view.indices, bounds, form);
  WritableBody body =
      memory.take_body(places.empty() ? 0 : places.back().begin + stream_wire_padded(places.back().length));
  for (size_t i = 0; i < packets.size(); ++i) {
    const SlicePlace& place = places[i];
    uint8_t* const out = body.bytes.data() + place.begin;
    if (place.dense) {
      write_dense(view, place.first, place.last, bounds[i], {reinterpret_cast<float*>(out), bounds[i + 1] - bounds[i]},
                  neutral);
    } else {
      write_pairs(view, place.first, place.last, bounds[i], out);
    }
  }
  const SharedBytes all = std::move(body).share();
  for (size_t i = 0; i < packets.size(); ++i) {
    packets[i] = {places[i].dense ? BodyForm::kDense : BodyForm::kPairs,
                  {all.owner, all.bytes.subspan(places[i].begin, places[i].length)}};
  }
  return packets;
}

Result<Packed> pack(const SharedStream& stream, const std::optional<CodecSpec>& codec, RandomKey random, uint64_t base,
                    BodyMemory& memory) {
  if (!codec || stream.view.dimension == 0) {
    if (stream.view.dense && stream.owner) return Packed{{BodyForm::kDense, bytes_within(stream)}, stream};
    return Packed{pack_range(stream.view, 0, stream.view.dimension, memory), stream};
  }
  return pack_contribution(stream, {}, {*codec, random, base});
}

Result<Packed> pack_contribution(const SharedStream& stream, const StreamView& rest, const EncodeOptions& options) {
  if (stream.view.dimension == 0) return Packed{pack_range(stream.view, 0, 0), stream};
  Result<EncodedContainer> coded = encode_container(stream.view, rest, options);
  if (!coded) return std::unexpected(coded.error());
  Packed packed;
  packed.decoded = coded->exact ? stream : SharedStream::from(std::move(coded->decoded));
  packed.packet = {BodyForm::kContainer, SharedBytes::from(std::move(coded->bytes))};
  return packed;
}

Result<SharedStream> unpack(const Packet& packet, uint64_t dimension, const ReduceOp& op) {
  MILLRACE_CHECK(std::bit_cast<uintptr_t>(packet.body.bytes.data()) % alignof(float) == 0, packet.body.bytes.size());
  Result<SharedStream> stream = unpack_form(packet, dimension);
  if (stream && !is_admissible(op, stream->view.values)) {
    return std::unexpected(diverged());
  }
  return stream;
}

Result<Piece> unpack_unchecked(const Packet& packet, uint64_t dimension, const ReduceOp& op) {
  MILLRACE_CHECK(std::bit_cast<uintptr_t>(packet.body.bytes.data()) % alignof(float) == 0, packet.body.bytes.size());
  const bool lies_there = packet.form == BodyForm::kPairs || packet.form == BodyForm::kDense;
  Result<SharedStream> stream = packet.form == BodyForm::kPairs   ? look_into_pairs(packet, dimension)
                                : packet.form == BodyForm::kDense ? unpack_dense(packet, dimension)
                                                                  : unpack(packet, dimension, op);
  if (!stream) return std::unexpected(stream.error());
  return Piece{std::move(*stream), lies_there ? Checked::kNo : Checked::kYes};
}

Result<SharedStream> unpack_addend(const Packet& packet, uint64_t dimension, const ReduceOp& op) {
  if (!op.is_sum() || packet.form != BodyForm::kDense) return unpack(packet, dimension, op);
  MILLRACE_CHECK(std::bit_cast<uintptr_t>(packet.body.bytes.data()) % alignof(float) == 0, packet.body.bytes.size());
  return unpack_dense(packet, dimension);
}

Error diverged() { return {ErrorCode::kNonFinite, "a peer sent NaN or infinity: the gradients have diverged"}; }

Status check_piece(const ReduceOp& op, const Piece& piece) {
  if (piece.entries == Checked::kYes) return {};
  if (Status status = validate(piece.stream.view); !status) return status;
  if (!is_admissible(op, piece.stream.view.values)) return std::unexpected(diverged());
  return {};
}

template <typename N>
Packet pack_numbers(std::span<const N> numbers) {
  ByteBuffer bytes(numbers.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return {BodyForm::kNumbers, SharedBytes::from(std::move(bytes))};
}

template <typename N>
Result<std::vector<N>> unpack_numbers(const Packet& packet) {
  const ByteSpan bytes = packet.body.bytes;
  if (packet.form != BodyForm::kNumbers || bytes.size() % sizeof(N) != 0) {
    return std::unexpected(bad_body(bytes.size(), "numbers"));
  }
  std::vector<N> numbers(bytes.size() / sizeof(N));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

template Packet pack_numbers(std::span<const uint32_t>);
template Packet pack_numbers(std::span<const uint64_t>);
template Packet pack_numbers(std::span<const float>);
template Packet pack_numbers(std::span<const double>);
template Result<std::vector<uint32_t>> unpack_numbers(const Packet&);
template Result<std::vector<uint64_t>> unpack_numbers(const Packet&);
template Result<std::vector<float>> unpack_numbers(const Packet&);
template Result<std::vector<double>> unpack_numbers(const Packet&);

}  // namespace millrace::peer
