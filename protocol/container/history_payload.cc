#include "protocol/container/history_payload.h"

#include <cstring>
#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/history/history_code.h"

namespace millrace {
namespace {

// Of the header: protocol/wire/container.md.
constexpr size_t kIndexCodecAt = 7;
constexpr size_t kIndexBytesAt = 32;
constexpr size_t kCouplingBytesAt = 48;
constexpr size_t kHistoryPayloadChecksumAt = 56;

/// The coupling section: the plain container's index codec, 7 bytes 0, its checksum.
constexpr uint64_t kCouplingBytes = 16;

std::unexpected<Error> malformed_history_payload(const char* what) {
  return fail(ErrorCode::kMalformed, std::string("shortened container: ") + what);
}

void put(ByteBuffer& bytes, size_t at, uint64_t value) { std::memcpy(bytes.data() + at, &value, sizeof(value)); }

const IndexCodec* lossless_codec(IndexCodecId id) {
  const IndexCodec* const codec = find_index_codec(id);
  return codec != nullptr && codec->lossless() ? codec : nullptr;
}

/// Writes the header's lengths, those of the bytes, and the checksum last.
void finish(ByteBuffer& bytes, IndexCodecId codec, uint64_t index_bytes, uint64_t coupling_bytes) {
  bytes[kIndexCodecAt] = static_cast<uint8_t>(codec);
  put(bytes, kIndexBytesAt, index_bytes);
  put(bytes, kCouplingBytesAt, coupling_bytes);
  put(bytes, kHistoryPayloadChecksumAt, container_checksum(bytes));
}

struct Coupling {
  IndexCodecId codec = IndexCodecId::kNone;
  uint64_t checksum = 0;
};

std::optional<Coupling> read_coupling(ByteSpan bytes) {
  if (bytes.size() != kCouplingBytes) return std::nullopt;
  ByteReader reader(bytes);
  const uint64_t codec = *reader.get<uint64_t>();
  if (codec > 0xff) return std::nullopt;
  return Coupling{static_cast<IndexCodecId>(codec), *reader.get<uint64_t>()};
}

Status check_history_payload_limits(const ContainerHeader& header, uint64_t bytes, const IndexHistory& history,
                                    const ContainerLimits& limits) {
  if (bytes > limits.bytes_max) return fail(ErrorCode::kLimitExceeded, "shortened container: too many bytes");
  if (header.count > limits.count_max) return fail(ErrorCode::kLimitExceeded, "shortened container: too many entries");
  const bool expected = limits.dimension == 0 || header.dimension == limits.dimension;
  if (!expected || header.dimension != history.dimension())
    return malformed_history_payload("another dimension than expected");
  return {};
}

}  // namespace

bool is_shortened(ByteSpan bytes) {
  const auto header = read_container_header(bytes);
  return header && header->index_codec == kHistoryIndexCodec;
}

Result<ByteBuffer> shorten_by_history(ByteSpan plain, IndexSpan indices, const IndexHistory& history) {
  const auto header = read_container_header(plain);
  if (!header) return std::unexpected(header.error());
  if (header->dense || header->coupling_bytes != 0 || lossless_codec(header->index_codec) == nullptr) {
    return fail(ErrorCode::kUnsupported, "dense, or of an index codec that is not lossless: no history shortens it");
  }
  if (header->dimension != history.dimension() || header->count != indices.size()) {
    return fail(ErrorCode::kInvalidArgument, "the history or the indices are not the container's");
  }
  const ByteSpan values = plain.subspan(kContainerHeaderBytes + header->index_bytes);
  ByteBuffer bytes;
  bytes.reserve(plain.size() + kCouplingBytes + kIndexCodecSlack);
  bytes.assign(plain.begin(), plain.begin() + kContainerHeaderBytes);
  history_encode(history, indices, bytes);
  const uint64_t index_bytes = bytes.size() - kContainerHeaderBytes;
  ByteWriter writer(bytes);
  writer.put_bytes(values);
  writer.put(uint64_t{static_cast<uint8_t>(header->index_codec)});
  writer.put(header->checksum);
  finish(bytes, kHistoryIndexCodec, index_bytes, kCouplingBytes);
  return bytes;
}

uint64_t restored_bytes_estimate(ByteSpan bytes) {
  const auto header = read_container_header(bytes);
  if (!header || header->index_codec != kHistoryIndexCodec) return 0;
  const std::optional<Coupling> coupling = read_coupling(bytes.last(header->coupling_bytes));
  const IndexCodec* const codec = coupling ? lossless_codec(coupling->codec) : nullptr;
  if (codec == nullptr) return 0;  // restore_by_history() refuses it
  return kContainerHeaderBytes + codec->bytes_estimate(header->count, header->dimension, {}) + header->value_bytes;
}

Result<ByteBuffer> restore_by_history(ByteSpan bytes, const IndexHistory& history, const ContainerLimits& limits) {
  const auto header = read_container_header(bytes);
  if (!header) return std::unexpected(header.error());
  if (header->index_codec != kHistoryIndexCodec) return fail(ErrorCode::kUnsupported, "not a shortened container");
  if (Status within = check_history_payload_limits(*header, bytes.size(), history, limits); !within) {
    return std::unexpected(within.error());
  }
  if (container_checksum(bytes) != header->checksum) return malformed_history_payload("the checksum is wrong");
  const ByteSpan sections = bytes.subspan(kContainerHeaderBytes);
  const std::optional<Coupling> coupling = read_coupling(sections.last(header->coupling_bytes));
  if (!coupling) return malformed_history_payload("its coupling section is none of a history");
  const IndexCodec* const codec = lossless_codec(coupling->codec);
  if (codec == nullptr || codec->dimension_max() < header->dimension) {
    return fail(ErrorCode::kUnsupported, "shortened container: of an index codec that this build does not know");
  }
  IndexBuffer indices;
  if (Status decoded = history_decode(sections.first(header->index_bytes), history, header->count, indices); !decoded) {
    return std::unexpected(decoded.error());
  }
  ByteBuffer plain(bytes.begin(), bytes.begin() + kContainerHeaderBytes);
  if (Status coded = codec->encode(indices, header->dimension, {}, plain, nullptr); !coded) {
    return std::unexpected(coded.error());
  }
  const uint64_t index_bytes = plain.size() - kContainerHeaderBytes;
  ByteWriter(plain).put_bytes(sections.subspan(header->index_bytes, header->value_bytes));
  if (plain.size() > limits.bytes_max) return fail(ErrorCode::kLimitExceeded, "restored container: too many bytes");
  finish(plain, coupling->codec, index_bytes, 0);
  if (container_identity(plain).value() != coupling->checksum)
    return malformed_history_payload("the restored container has another checksum");
  return plain;
}

}  // namespace millrace
