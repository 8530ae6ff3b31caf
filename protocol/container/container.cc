#include "protocol/container/container.h"

#include <array>
#include <cstring>
#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "kernels/stream/stream_scan.h"

namespace millrace {
namespace {

constexpr std::array<uint8_t, 4> kMagic = {'M', 'R', 'C', '1'};
constexpr uint8_t kFlagDense = 1;
constexpr uint64_t kContainerChecksumAt = 56;

/// Returns XXH3-64 of the sections, seeded by that of the header's fields before the checksum.
uint64_t checksum_of(ByteSpan container) {
  return hash64(container.subspan(kContainerHeaderBytes), hash64(container.first(kContainerChecksumAt)));
}

/// Allocates nothing: a caller may have no other copy of the coded values.
std::array<uint8_t, kContainerHeaderBytes> header_bytes(const ContainerHeader& header) {
  std::array<uint8_t, kContainerHeaderBytes> bytes{};
  size_t at = 0;
  const auto put = [&](const auto& field) {
    MILLRACE_CHECK(at + sizeof(field) <= bytes.size(), at, sizeof(field));
    std::memcpy(bytes.data() + at, &field, sizeof(field));
    at += sizeof(field);
  };
  put(kMagic);
  put(kContainerVersion);
  put(static_cast<uint8_t>(header.value_type));
  put(static_cast<uint8_t>(header.dense ? kFlagDense : 0));
  put(static_cast<uint8_t>(header.index_codec));
  put(static_cast<uint8_t>(header.value_codec));
  put(std::array<uint8_t, 7>{});
  put(header.dimension);
  put(header.count);
  put(header.index_bytes);
  put(header.value_bytes);
  put(header.coupling_bytes);
  MILLRACE_CHECK(at == kContainerChecksumAt, at);
  return bytes;
}

/// Writes the header and the checksum before the sections, which are in place.
void put_header(const ContainerHeader& header, ByteBuffer& bytes) {
  const auto head = header_bytes(header);
  std::memcpy(bytes.data(), head.data(), head.size());
  const uint64_t checksum = checksum_of(bytes);
  std::memcpy(bytes.data() + kContainerChecksumAt, &checksum, sizeof(checksum));
}

std::unexpected<Error> malformed_container(const char* what) {
  return fail(ErrorCode::kMalformed, std::string("codec container: ") + what);
}

/// Refuses a type whose values no stream of this version can hold.
Status check_value_type(ValueType type) {
  switch (type) {
    case ValueType::kF32: return {};
    case ValueType::kF64:
      return fail(ErrorCode::kUnsupported, "codec container: value type f64 is reserved; send the values as f32");
  }
  return fail(ErrorCode::kUnsupported, "codec container: unknown value type");
}

/// Refuses fields that contradict each other.
Status check_fields(const ContainerHeader& header) {
  if (header.dimension == 0 || header.dimension > kDimensionMax) return malformed_container("dimension 0 or over 2^32");
  if (header.count > header.dimension) return malformed_container("more entries than the dimension has");
  if (header.dense != (header.index_codec == IndexCodecId::kNone))
    return malformed_container("dense and an index codec, or neither");
  if (header.dense && (header.count != header.dimension || header.index_bytes != 0)) {
    return malformed_container("dense, but with an index section or not every entry");
  }
  return {};
}

Status check_container_limits(const ContainerHeader& header, uint64_t bytes, const ContainerLimits& limits) {
  if (bytes > limits.bytes_max) {
    return fail(ErrorCode::kLimitExceeded, "codec container of " + std::to_string(bytes) + " bytes; the limit is " +
                                               std::to_string(limits.bytes_max));
  }
  if (limits.dimension != 0 && header.dimension != limits.dimension) {
    return fail(ErrorCode::kMalformed, "codec container of dimension " + std::to_string(header.dimension) +
                                           "; expected " + std::to_string(limits.dimension));
  }
  if (header.count > limits.count_max) {
    return fail(ErrorCode::kLimitExceeded, "codec container of " + std::to_string(header.count) +
                                               " entries; the limit is " + std::to_string(limits.count_max));
  }
  return {};
}

}  // namespace

PlainContainer plain_container(const StreamView& entries, uint64_t base, uint64_t dimension) {
  MILLRACE_CHECK(!entries.dense && dimension > 0 && dimension <= kDimensionMax, dimension);
  const size_t count = entries.count();
  MILLRACE_CHECK(count == 0 || (entries.indices.front() >= base && entries.indices.back() - base < dimension), base,
                 dimension);
  ContainerHeader header;
  header.index_codec = IndexCodecId::kRaw;
  header.dimension = dimension;
  header.count = count;
  header.index_bytes = count * sizeof(uint32_t);
  header.value_bytes = count * sizeof(float);
  ByteBuffer bytes;
  bytes.resize(kContainerHeaderBytes + header.index_bytes + header.value_bytes);
  // The allocator's alignment and a header of 64 bytes leave both arrays aligned.
  auto* const indices = reinterpret_cast<uint32_t*>(bytes.data() + kContainerHeaderBytes);
  auto* const values = reinterpret_cast<float*>(bytes.data() + kContainerHeaderBytes + header.index_bytes);
  moved_down(entries.indices.data(), count, static_cast<uint32_t>(base), indices);
  if (count > 0) std::memcpy(values, entries.values.data(), entries.values.size_bytes());
  put_header(header, bytes);
  return {SharedBytes::from(std::move(bytes)), {dimension, false, {indices, count}, {values, count}}};
}

Result<EncodedContainer> encode_container(const StreamView& selected, const StreamView& original,
                                          const EncodeOptions& options) {
  if (auto valid = validate(options.spec); !valid) return std::unexpected(valid.error());
  EncodedContainer encoded;
  ContainerHeader header;
  const uint64_t count = selected.count();
  const ValueCodec* value_codec = find_value_codec(options.spec.value);
  uint64_t expected = kContainerHeaderBytes + value_codec->bytes_max(count, options.spec);
  if (!selected.dense) {
    expected += find_index_codec(options.spec.index)->bytes_estimate(count, selected.dimension, options.spec);
  }
  encoded.bytes.reserve(expected + expected / 16 + kIndexCodecSlack);
  encoded.bytes.resize(kContainerHeaderBytes);
  auto coding = append_stream(selected, original, options, encoded.bytes, encoded.bytes, header.index_bytes);
  if (!coding) return std::unexpected(coding.error());
  header.dense = coding->dense;
  header.index_codec = coding->index_codec;
  header.value_codec = coding->value_codec;
  header.dimension = coding->dimension;
  header.count = coding->count;
  header.value_bytes = encoded.bytes.size() - kContainerHeaderBytes - header.index_bytes;
  if (auto valid = check_fields(header); !valid) {  // e.g. a dimension of 0: a fault of the caller, not of the wire
    return fail(ErrorCode::kInvalidArgument, valid.error().message);
  }
  put_header(header, encoded.bytes);
  encoded.count = coding->count;
  encoded.exact = coding->exact;
  encoded.decoded = std::move(coding->decoded);
  encoded.false_positives = coding->false_positives;
  return encoded;
}

void seal_dense_container(uint64_t dimension, ValueCodecId codec, ByteBuffer& bytes) {
  MILLRACE_CHECK(bytes.size() >= kContainerHeaderBytes, bytes.size());
  ContainerHeader header;
  header.dense = true;
  header.value_codec = codec;
  header.dimension = dimension;
  header.count = dimension;
  header.value_bytes = bytes.size() - kContainerHeaderBytes;
  const Status valid = check_fields(header);
  MILLRACE_CHECK(valid.has_value(), dimension);
  put_header(header, bytes);
}

Result<uint64_t> container_identity(ByteSpan container) {
  if (container.size() < kContainerHeaderBytes) return malformed_container("shorter than its header");
  return *ByteReader(container.subspan(kContainerChecksumAt)).get<uint64_t>();
}

uint64_t container_checksum(ByteSpan container) {
  return container.size() < kContainerHeaderBytes ? 0 : checksum_of(container);
}

Result<ContainerHeader> read_container_header(ByteSpan bytes) {
  if (bytes.size() < kContainerHeaderBytes) return malformed_container("shorter than its header");
  ByteReader reader(bytes);
  const ByteSpan magic = *reader.get_bytes(kMagic.size());
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) return malformed_container("wrong magic");
  if (*reader.get<uint8_t>() != kContainerVersion)
    return fail(ErrorCode::kUnsupported, "codec container: unknown version");
  ContainerHeader header;
  header.value_type = static_cast<ValueType>(*reader.get<uint8_t>());
  if (Status carried = check_value_type(header.value_type); !carried) return std::unexpected(carried.error());
  const uint8_t flags = *reader.get<uint8_t>();
  if ((flags & ~kFlagDense) != 0) return malformed_container("unknown flags");
  header.dense = flags == kFlagDense;
  header.index_codec = static_cast<IndexCodecId>(*reader.get<uint8_t>());
  header.value_codec = static_cast<ValueCodecId>(*reader.get<uint8_t>());
  const ByteSpan reserved = *reader.get_bytes(7);
  for (const uint8_t zero : reserved) {
    if (zero != 0) return malformed_container("reserved bytes are not 0");
  }
  header.dimension = *reader.get<uint64_t>();
  header.count = *reader.get<uint64_t>();
  header.index_bytes = *reader.get<uint64_t>();
  header.value_bytes = *reader.get<uint64_t>();
  header.coupling_bytes = *reader.get<uint64_t>();
  header.checksum = *reader.get<uint64_t>();
  uint64_t rest = reader.remaining();
  for (const uint64_t section : {header.index_bytes, header.value_bytes, header.coupling_bytes}) {
    if (section > rest) return malformed_container("sections longer than the bytes");
    rest -= section;
  }
  if (rest != 0) return malformed_container("bytes behind the sections");
  if (auto valid = check_fields(header); !valid) return std::unexpected(valid.error());
  return header;
}

namespace {

/// A container whose header, limits and checksum are right, and its sections.
struct CheckedContainer {
  ContainerHeader header;
  ByteSpan index_code;
  ByteSpan value_code;
};

Result<CheckedContainer> check_container(ByteSpan bytes, const ContainerLimits& limits) {
  const auto header = read_container_header(bytes);
  if (!header) return std::unexpected(header.error());
  if (auto within = check_container_limits(*header, bytes.size(), limits); !within) {
    return std::unexpected(within.error());
  }
  if (checksum_of(bytes) != header->checksum) return malformed_container("the checksum is wrong");
  if (header->coupling_bytes != 0) return fail(ErrorCode::kUnsupported, "codec container: a coupling section");
  return CheckedContainer{*header, bytes.subspan(kContainerHeaderBytes, header->index_bytes),
                          bytes.subspan(kContainerHeaderBytes + header->index_bytes, header->value_bytes)};
}

Status check_finite(std::span<const float> values, NonFinitePolicy policy) {
  if (policy == NonFinitePolicy::kAccept || all_finite(values)) return {};
  return fail(ErrorCode::kNonFinite, "codec container: a value is NaN or infinite");
}

bool is_plain(const ContainerHeader& header, ByteSpan bytes) {
  if (header.value_codec != ValueCodecId::kRaw) return false;
  if (header.index_codec != (header.dense ? IndexCodecId::kNone : IndexCodecId::kRaw)) return false;
  const auto at = reinterpret_cast<uintptr_t>(bytes.data()) + kContainerHeaderBytes;
  return at % alignof(uint32_t) == 0 && (at + header.index_bytes) % alignof(float) == 0;
}

}  // namespace

Result<Stream> read_container(ByteSpan bytes, const ContainerLimits& limits) {
  const auto checked = check_container(bytes, limits);
  if (!checked) return std::unexpected(checked.error());
  const ContainerHeader& header = checked->header;
  const ValueCodec* value_codec = find_value_codec(header.value_codec);
  const IndexCodec* index_codec = header.dense ? nullptr : find_index_codec(header.index_codec);
  if (value_codec == nullptr || (index_codec == nullptr && !header.dense)) {
    return fail(ErrorCode::kUnsupported, "codec container: a codec that this build does not know");
  }
  if (auto sized = value_codec->check(checked->value_code, header.count); !sized) {
    return std::unexpected(sized.error());
  }
  Stream stream;
  stream.dimension = header.dimension;
  stream.dense = header.dense;
  if (index_codec != nullptr) {
    if (auto done = index_codec->decode(checked->index_code, header.dimension, header.count, stream.indices); !done) {
      return std::unexpected(done.error());
    }
  }
  stream.values.resize(header.count);
  if (auto done = value_codec->decode(checked->value_code, stream.indices, std::span<float>(stream.values)); !done)
    return std::unexpected(done.error());
  if (auto finite = check_finite(stream.values, limits.non_finite); !finite) {
    return std::unexpected(finite.error());
  }
  return stream;
}

bool is_plain(ByteSpan bytes) {
  const auto header = read_container_header(bytes);
  return header && is_plain(*header, bytes);
}

Result<StreamView> view_container(ByteSpan bytes, const ContainerLimits& limits) {
  const auto checked = check_container(bytes, limits);
  if (!checked) return std::unexpected(checked.error());
  const ContainerHeader& header = checked->header;
  if (!is_plain(header, bytes)) return fail(ErrorCode::kUnsupported, "codec container: not plain, cannot be viewed");
  if (checked->index_code.size() != (header.dense ? 0 : header.count * sizeof(uint32_t)) ||
      checked->value_code.size() != header.count * sizeof(float)) {
    return malformed_container("the sections are not as long as raw entries are");
  }
  StreamView view{header.dimension, header.dense, {}, {}};
  // The sender's arrays, of types without a representation that is not a value, at their alignment.
  view.values = {reinterpret_cast<const float*>(checked->value_code.data()), header.count};
  if (!header.dense) view.indices = {reinterpret_cast<const uint32_t*>(checked->index_code.data()), header.count};
  if (auto valid = validate(view); !valid) return std::unexpected(valid.error());
  if (auto finite = check_finite(view.values, limits.non_finite); !finite) {
    return std::unexpected(finite.error());
  }
  return view;
}

bool is_viewed(const SharedBytes& payload) {
  return payload.owner && payload.bytes.size() >= kViewBytesMin && is_plain(payload.bytes);
}

Result<SharedStream> read_shared_container(const SharedBytes& payload, const ContainerLimits& limits) {
  if (is_viewed(payload)) {
    const Result<StreamView> view = view_container(payload.bytes, limits);
    if (!view) return std::unexpected(view.error());
    return SharedStream::within(payload, *view);
  }
  Result<Stream> stream = read_container(payload.bytes, limits);
  if (!stream) return std::unexpected(stream.error());
  return SharedStream::from(std::move(*stream));
}

}  // namespace millrace
