// Feeds hostile bytes to the code of indices against a history, and to containers that use it, against any history. An
// accepted set is well formed and codes to itself. A restored container has the announced checksum.
#include <algorithm>
#include <cstring>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/history/history_code.h"
#include "protocol/container/container.h"
#include "protocol/container/history_payload.h"

namespace millrace {
namespace {

constexpr uint64_t kDimensionFuzzed = 5'000;  // two groups; time follows it
constexpr uint32_t kRepeatsMax = 70;          // two periods end
constexpr ContainerLimits kLimits{.dimension = 0, .count_max = 1 << 16, .bytes_max = 1 << 20};

/// The bytes as gaps of varying size.
IndexBuffer set_from(ByteSpan bytes, uint64_t dimension) {
  IndexBuffer indices;
  uint64_t next = 0;
  for (size_t j = 0; j + 1 < bytes.size(); j += 2) {
    next += uint64_t{bytes[j]} << (bytes[j + 1] % 12);
    if (next >= dimension) break;
    indices.push_back(static_cast<uint32_t>(next++));
  }
  return indices;
}

/// A history of a drawn dimension, of updates that the bytes say; some are repeated, so that periods end.
IndexHistory history_from(ByteReader& reader) {
  const uint64_t dimension = 1 + reader.get<uint16_t>().value_or(0) % kDimensionFuzzed;
  IndexHistory history(dimension, reader.get<uint8_t>().value_or(0) % 40);
  for (uint32_t updates = reader.get<uint8_t>().value_or(0) % 4; updates > 0; --updates) {
    const uint32_t repeats = reader.get<uint8_t>().value_or(0) % kRepeatsMax;
    const uint64_t bytes = std::min<uint64_t>(reader.get<uint8_t>().value_or(0), reader.remaining());
    const IndexBuffer indices = set_from(*reader.get_bytes(bytes), dimension);
    for (uint32_t i = 0; i <= repeats; ++i) history.advance(indices);
  }
  return history;
}

void round_trip(const IndexHistory& history, IndexSpan indices) {
  ByteBuffer bytes;
  history_encode(history, indices, bytes);
  IndexBuffer decoded;
  MILLRACE_CHECK(history_decode(bytes, history, indices.size(), decoded).has_value(), indices.size());
  MILLRACE_CHECK(std::ranges::equal(decoded, indices), indices.size());
}

void decode_hostile(const IndexHistory& history, ByteSpan rest, uint64_t count) {
  ByteBuffer bytes;  // under the right name: else nothing is decoded
  ByteWriter writer(bytes);
  writer.put(history.name());
  writer.put_bytes(rest);
  const ByteBuffer exact(bytes.begin(), bytes.end());  // the sanitizer sees a read behind the end
  IndexBuffer decoded;
  if (!history_decode(exact, history, count, decoded)) return;
  MILLRACE_CHECK(decoded.size() == count, decoded.size(), count);
  for (size_t j = 1; j < decoded.size(); ++j) MILLRACE_CHECK(decoded[j - 1] < decoded[j], j);
  MILLRACE_CHECK(decoded.empty() || decoded.back() < history.dimension(), history.dimension());
  round_trip(history, decoded);
}

void restore_hostile(const IndexHistory& history, ByteSpan bytes) {
  const ByteBuffer exact(bytes.begin(), bytes.end());
  const auto plain = restore_by_history(exact, history, kLimits);
  if (!plain) return;
  uint64_t said = 0;
  std::memcpy(&said, exact.data() + exact.size() - sizeof(said), sizeof(said));
  MILLRACE_CHECK(container_identity(*plain) == said && container_checksum(*plain) == said, said);
}

/// A container of the set, shortened; then with a byte changed, and again with its checksum made right.
void travel(const IndexHistory& history, const IndexBuffer& indices, uint32_t at, uint8_t flip) {
  Stream stream = Stream::empty(history.dimension());
  stream.indices = indices;
  for (const uint32_t index : indices) stream.values.push_back(static_cast<float>(index) + 1);
  const auto plain = encode_container(stream.view(), {}, {});
  MILLRACE_CHECK(plain.has_value());
  auto shortened = shorten_by_history(plain->bytes, indices, history);
  MILLRACE_CHECK(shortened.has_value());
  const auto restored = restore_by_history(*shortened, history, kLimits);
  MILLRACE_CHECK(restored && *restored == plain->bytes, indices.size());
  if (flip == 0) return;
  uint8_t& byte = (*shortened)[at % shortened->size()];
  byte = static_cast<uint8_t>(byte ^ flip);
  MILLRACE_CHECK(!restore_by_history(*shortened, history, kLimits), at);
  const uint64_t checksum = container_checksum(*shortened);
  std::memcpy(shortened->data() + 56, &checksum, sizeof(checksum));
  restore_hostile(history, *shortened);
}

void fuzz(ByteSpan bytes) {
  ByteReader reader(bytes);
  const IndexHistory history = history_from(reader);
  const uint8_t choice = reader.get<uint8_t>().value_or(0);
  const auto number = reader.get<uint16_t>().value_or(0);
  const ByteSpan rest = *reader.get_bytes(reader.remaining());
  restore_hostile(history, rest);
  if (!history.complete()) return;
  if (choice & 1) {
    decode_hostile(history, rest, number);
  } else {
    const IndexBuffer indices = set_from(rest, history.dimension());
    round_trip(history, indices);
    travel(history, indices, number, choice);
  }
}

}  // namespace
}  // namespace millrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::fuzz({data, size});
  return 0;
}
