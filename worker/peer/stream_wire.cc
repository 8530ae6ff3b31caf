#include "worker/peer/stream_wire.h"

#include <bit>
#include <cstring>

#include "kernels/base/check.h"
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

template <typename T>
Result<HeldStream<T>> unpack_pairs(const Packet& packet, uint64_t dimension) {
  const ByteSpan bytes = packet.body.bytes;
  if (bytes.size() % kPairBytes<T> != 0) return std::unexpected(bad_body(bytes.size(), "pairs"));
  const size_t count = bytes.size() / kPairBytes<T>;
  StreamView<T> view{dimension, false, {}, {}};
  view.values = {reinterpret_cast<const T*>(bytes.data()), count};
  view.indices = {reinterpret_cast<const uint32_t*>(bytes.data() + count * sizeof(T)), count};
  if (Status status = validate(view); !status) return std::unexpected(status.error());
  return HeldStream<T>::within(packet.body, view);
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
Packet pack_range(const StreamView<T>& stream, uint64_t begin, uint64_t end) {
  MILLRACE_CHECK(begin <= end && end <= stream.dimension, begin, end, stream.dimension);
  ByteBuffer bytes;
  if (stream.dense) {
    bytes.resize((end - begin) * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), stream.values.data() + begin, bytes.size());
    return {BodyForm::kDense, SharedBytes::from(std::move(bytes))};
  }
  const auto [first, last] = range_of(stream.indices, begin, end);
  const size_t count = last - first;
  if (count == 0) return {BodyForm::kPairs, {}};
  bytes.resize(count * kPairBytes<T>);
  std::memcpy(bytes.data(), stream.values.data() + first, count * sizeof(T));
  auto* const indices = reinterpret_cast<uint32_t*>(bytes.data() + count * sizeof(T));
  const auto base = static_cast<uint32_t>(begin);
  for (size_t i = 0; i < count; ++i) indices[i] = stream.indices[first + i] - base;
  return {BodyForm::kPairs, SharedBytes::from(std::move(bytes))};
}

template <typename T>
Result<Packed<T>> pack(const HeldStream<T>& stream, const std::optional<CodecSpec>& codec, RandomKey random,
                       uint64_t base) {
  if (!codec || stream.view.dimension == 0) {
    return Packed<T>{pack_range(stream.view, 0, stream.view.dimension), stream};
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
Result<HeldStream<T>> unpack(const Packet& packet, uint64_t dimension) {
  MILLRACE_CHECK(std::bit_cast<uintptr_t>(packet.body.bytes.data()) % alignof(T) == 0, packet.body.bytes.size());
  Result<HeldStream<T>> stream = std::unexpected(bad_body(packet.body.bytes.size(), "a stream"));
  switch (packet.form) {
    case BodyForm::kPairs: stream = unpack_pairs<T>(packet, dimension); break;
    case BodyForm::kDense: stream = unpack_dense<T>(packet, dimension); break;
    case BodyForm::kContainer:
      return hold_container<T>(packet.body, {.dimension = dimension, .bytes_max = packet.body.bytes.size()});
    case BodyForm::kNone:
    case BodyForm::kNumbers: break;
  }
  if (stream && !all_finite<T>(stream->view.values)) {
    return fail(ErrorCode::kNonFinite, "a peer sent NaN or infinity: the gradients have diverged");
  }
  return stream;
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

template Packet pack_range(const StreamView<float>&, uint64_t, uint64_t);
template Packet pack_range(const StreamView<double>&, uint64_t, uint64_t);
template Result<Packed<float>> pack(const HeldStream<float>&, const std::optional<CodecSpec>&, RandomKey, uint64_t);
template Result<Packed<double>> pack(const HeldStream<double>&, const std::optional<CodecSpec>&, RandomKey, uint64_t);
template Result<HeldStream<float>> unpack(const Packet&, uint64_t);
template Result<HeldStream<double>> unpack(const Packet&, uint64_t);
template Packet pack_numbers(std::span<const uint32_t>);
template Packet pack_numbers(std::span<const uint64_t>);
template Packet pack_numbers(std::span<const float>);
template Packet pack_numbers(std::span<const double>);
template Result<std::vector<uint32_t>> unpack_numbers(const Packet&);
template Result<std::vector<uint64_t>> unpack_numbers(const Packet&);
template Result<std::vector<float>> unpack_numbers(const Packet&);
template Result<std::vector<double>> unpack_numbers(const Packet&);

}  // namespace millrace::peer
