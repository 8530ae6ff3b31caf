#include "worker/peer/stream_wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/stream/stream_scan.h"
#include "protocol/container.h"

namespace millrace::peer {
namespace {

template <typename T>
constexpr size_t kPairBytes = sizeof(T) + sizeof(uint32_t);

Error bad_body(size_t bytes, const char* what) {
  return {ErrorCode::kMalformed, "a peer's message of " + std::to_string(bytes) + " bytes is not " + what};
}

template <typename T>
Result<HeldStream<T>> unpack_dense(const Packet& packet, uint64_t dimension) {
  const ByteSpan bytes = packet.body.bytes;
  if (bytes.size() / sizeof(T) != dimension || bytes.size() % sizeof(T) != 0) {
    return std::unexpected(bad_body(bytes.size(), ("a dense slice of " + std::to_string(dimension)).c_str()));
  }
  StreamView<T> view{dimension, true, {}, {reinterpret_cast<const T*>(bytes.data()), dimension}};
  return HeldStream<T>::within(packet.body, view);
}

/// The order of the indices is not looked at.
template <typename T>
Result<HeldStream<T>> look_into_pairs(const Packet& packet, uint64_t dimension) {
  const ByteSpan bytes = packet.body.bytes;
  if (bytes.size() % kPairBytes<T> != 0) return std::unexpected(bad_body(bytes.size(), "pairs"));
  const size_t count = bytes.size() / kPairBytes<T>;
  if (count > dimension) {
    return std::unexpected(bad_body(bytes.size(), ("pairs of a slice of " + std::to_string(dimension)).c_str()));
  }
  StreamView<T> view{dimension, false, {}, {}};
  view.values = {reinterpret_cast<const T*>(bytes.data()), count};
  view.indices = {reinterpret_cast<const uint32_t*>(bytes.data() + count * sizeof(T)), count};
  return HeldStream<T>::within(packet.body, view);
}

template <typename T>
Result<HeldStream<T>> unpack_pairs(const Packet& packet, uint64_t dimension) {
  Result<HeldStream<T>> stream = look_into_pairs<T>(packet, dimension);
  if (!stream) return stream;
  if (Status status = validate(stream->view); !status) return std::unexpected(status.error());
  return stream;
}

template <typename T>
Result<HeldStream<T>> unpack_form(const Packet& packet, uint64_t dimension) {
  switch (packet.form) {
    case BodyForm::kPairs: return unpack_pairs<T>(packet, dimension);
    case BodyForm::kDense: return unpack_dense<T>(packet, dimension);
    case BodyForm::kContainer:
      return hold_container<T>(
          packet.body,
          {.dimension = dimension, .bytes_max = packet.body.bytes.size(), .non_finite = NonFinitePolicy::kAccept});
    case BodyForm::kNone:
    case BodyForm::kNumbers: break;
  }
  return std::unexpected(bad_body(packet.body.bytes.size(), "a stream"));
}

/// The entries in positions [first, last), as pairs whose indices count from `base`.
template <typename T>
void write_pairs(const StreamView<T>& stream, size_t first, size_t last, uint64_t base, uint8_t* out) {
  const size_t count = last - first;
  if (count == 0) return;
  std::memcpy(out, stream.values.data() + first, count * sizeof(T));
  moved_down(stream.indices.data() + first, count, static_cast<uint32_t>(base),
             reinterpret_cast<uint32_t*>(out + count * sizeof(T)));
}

/// The same entries among neutral elements.
template <typename T>
void write_dense(const StreamView<T>& stream, size_t first, size_t last, uint64_t base, std::span<T> out, T neutral) {
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

/// The first position from `from` on whose index is `bound` or more: found in steps that double, since the next slice's begin is
/// near where there are many.
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

template <typename T>
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
    place.dense = form == SliceForm::kSmaller && count != 0 && count >= dense_from_count<T>(dimension);
    place.length = place.dense ? dimension * sizeof(T) : count * kPairBytes<T>;
    before = place;
  }
  return places;
}

/// The values of a dense stream, where they lie.
template <typename T>
SharedBytes bytes_within(const HeldStream<T>& stream) {
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

template <typename T>
Packet pack_range(const StreamView<T>& stream, uint64_t begin, uint64_t end, BodyMemory& memory) {
  MILLRACE_CHECK(begin <= end && end <= stream.dimension, begin, end, stream.dimension);
  if (stream.dense) {
    WritableBody body = memory.take_body((end - begin) * sizeof(T));
    if (begin < end) std::memcpy(body.bytes.data(), stream.values.data() + begin, body.bytes.size());
    return {BodyForm::kDense, std::move(body).share()};
  }
  const auto [first, last] = range_of(stream.indices, begin, end);
  if (first == last) return {BodyForm::kPairs, {}};
  WritableBody body = memory.take_body((last - first) * kPairBytes<T>);
  write_pairs(stream, first, last, begin, body.bytes.data());
  return {BodyForm::kPairs, std::move(body).share()};
}

template <typename T>
std::vector<Packet> pack_slices(const HeldStream<T>& stream, std::span<const uint64_t> bounds, T neutral,
                                SliceForm form, BodyMemory& memory) {
  const StreamView<T>& view = stream.view;
  MILLRACE_CHECK(!bounds.empty() && bounds.front() == 0 && bounds.back() == view.dimension, bounds.size());
  std::vector<Packet> packets(bounds.size() - 1);
  if (view.dense) {
    const SharedBytes all = stream.owner ? bytes_within(stream) : pack_range(view, 0, view.dimension, memory).body;
    for (size_t i = 0; i < packets.size(); ++i) {
      const ByteSpan slice = all.bytes.subspan(bounds[i] * sizeof(T), (bounds[i + 1] - bounds[i]) * sizeof(T));
      packets[i] = {BodyForm::kDense, {all.owner, slice}};
    }
    return packets;
  }
  const std::vector<SlicePlace> places = places_of<T>(view.indices, bounds, form);
  WritableBody body =
      memory.take_body(places.empty() ? 0 : places.back().begin + stream_wire_padded(places.back().length));
  for (size_t i = 0; i < packets.size(); ++i) {
    const SlicePlace& place = places[i];
    uint8_t* const out = body.bytes.data() + place.begin;
    if (place.dense) {
      write_dense(view, place.first, place.last, bounds[i], {reinterpret_cast<T*>(out), bounds[i + 1] - bounds[i]},
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

template <typename T>
Result<Packed<T>> pack(const HeldStream<T>& stream, const std::optional<CodecSpec>& codec, RandomKey random,
                       uint64_t base, BodyMemory& memory) {
  if (!codec || stream.view.dimension == 0) {
    if (stream.view.dense && stream.owner) return Packed<T>{{BodyForm::kDense, bytes_within(stream)}, stream};
    return Packed<T>{pack_range(stream.view, 0, stream.view.dimension, memory), stream};
  }
  EncodeOptions options;
  options.spec = *codec;
  options.random = random;
  options.index_base = base;
  Result<EncodedContainer<T>> coded = encode_container<T>(stream.view, stream.view, options);
  if (!coded) return std::unexpected(coded.error());
  Packed<T> packed;
  packed.decoded = coded->exact ? stream : HeldStream<T>::from(std::move(coded->decoded));
  packed.packet = {BodyForm::kContainer, SharedBytes::from(std::move(coded->bytes))};
  return packed;
}

template <typename T>
Result<HeldStream<T>> unpack(const Packet& packet, uint64_t dimension, const ReduceOp<T>& op) {
  MILLRACE_CHECK(std::bit_cast<uintptr_t>(packet.body.bytes.data()) % alignof(T) == 0, packet.body.bytes.size());
  Result<HeldStream<T>> stream = unpack_form<T>(packet, dimension);
  if (stream && !is_admissible<T>(op, stream->view.values)) {
    return std::unexpected(diverged());
  }
  return stream;
}

template <typename T>
Result<Piece<T>> unpack_unchecked(const Packet& packet, uint64_t dimension, const ReduceOp<T>& op) {
  MILLRACE_CHECK(std::bit_cast<uintptr_t>(packet.body.bytes.data()) % alignof(T) == 0, packet.body.bytes.size());
  const bool lies_there = packet.form == BodyForm::kPairs || packet.form == BodyForm::kDense;
  Result<HeldStream<T>> stream = packet.form == BodyForm::kPairs   ? look_into_pairs<T>(packet, dimension)
                                 : packet.form == BodyForm::kDense ? unpack_dense<T>(packet, dimension)
                                                                   : unpack<T>(packet, dimension, op);
  if (!stream) return std::unexpected(stream.error());
  return Piece<T>{std::move(*stream), lies_there ? Checked::kNo : Checked::kYes};
}

template <typename T>
Result<HeldStream<T>> unpack_addend(const Packet& packet, uint64_t dimension, const ReduceOp<T>& op) {
  if (!op.is_sum() || packet.form != BodyForm::kDense) return unpack<T>(packet, dimension, op);
  MILLRACE_CHECK(std::bit_cast<uintptr_t>(packet.body.bytes.data()) % alignof(T) == 0, packet.body.bytes.size());
  return unpack_dense<T>(packet, dimension);
}

Error diverged() { return {ErrorCode::kNonFinite, "a peer sent NaN or infinity: the gradients have diverged"}; }

template <typename T>
Status check_piece(const ReduceOp<T>& op, const Piece<T>& piece) {
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

template Packet pack_range(const StreamView<float>&, uint64_t, uint64_t, BodyMemory&);
template Packet pack_range(const StreamView<double>&, uint64_t, uint64_t, BodyMemory&);
template Result<Packed<float>> pack(const HeldStream<float>&, const std::optional<CodecSpec>&, RandomKey, uint64_t,
                                    BodyMemory&);
template Result<Packed<double>> pack(const HeldStream<double>&, const std::optional<CodecSpec>&, RandomKey, uint64_t,
                                     BodyMemory&);
template std::vector<Packet> pack_slices(const HeldStream<float>&, std::span<const uint64_t>, float, SliceForm,
                                         BodyMemory&);
template std::vector<Packet> pack_slices(const HeldStream<double>&, std::span<const uint64_t>, double, SliceForm,
                                         BodyMemory&);
template Result<HeldStream<float>> unpack(const Packet&, uint64_t, const ReduceOp<float>&);
template Result<HeldStream<double>> unpack(const Packet&, uint64_t, const ReduceOp<double>&);
template Result<Piece<float>> unpack_unchecked(const Packet&, uint64_t, const ReduceOp<float>&);
template Result<Piece<double>> unpack_unchecked(const Packet&, uint64_t, const ReduceOp<double>&);
template Result<HeldStream<float>> unpack_addend(const Packet&, uint64_t, const ReduceOp<float>&);
template Result<HeldStream<double>> unpack_addend(const Packet&, uint64_t, const ReduceOp<double>&);
template Status check_piece(const ReduceOp<float>&, const Piece<float>&);
template Status check_piece(const ReduceOp<double>&, const Piece<double>&);
template Packet pack_numbers(std::span<const uint32_t>);
template Packet pack_numbers(std::span<const uint64_t>);
template Packet pack_numbers(std::span<const float>);
template Packet pack_numbers(std::span<const double>);
template Result<std::vector<uint32_t>> unpack_numbers(const Packet&);
template Result<std::vector<uint64_t>> unpack_numbers(const Packet&);
template Result<std::vector<float>> unpack_numbers(const Packet&);
template Result<std::vector<double>> unpack_numbers(const Packet&);

}  // namespace millrace::peer
