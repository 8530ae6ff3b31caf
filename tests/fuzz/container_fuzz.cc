// Feeds hostile bytes to the codec container, as they are and under a right checksum. An accepted stream is valid, and
// encodes and decodes to itself. The view in place is equal, or refused as well.
#include <cmath>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/container/container.h"
#include "tests/support/oracles/stream_oracle.h"

namespace millrace {
namespace {

constexpr ContainerLimits kLimits{.dimension = 0, .count_max = 1 << 16, .bytes_max = 1 << 20};

/// Returns whether decoding scans a dimension that is too large for a fuzzer's time limit.
bool slow(ByteSpan bytes) {
  const auto header = read_container_header(bytes);
  const IndexCodec* codec = header ? find_index_codec(header->index_codec) : nullptr;
  return codec != nullptr && codec->dimension_max() < kDimensionMax && header->dimension > 1 << 18;
}

bool same(const Stream& a, const Stream& b) {
  return a.dimension == b.dimension && a.dense == b.dense && a.indices == b.indices &&
         a.values.size() == b.values.size() &&
         (a.values.empty() || std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0);
}

void read(ByteSpan bytes) {
  const auto stream = read_container(bytes, kLimits);
  if (is_plain(bytes)) {
    const auto view = view_container(bytes, kLimits);
    MILLRACE_CHECK(view.has_value() == stream.has_value(), bytes.size());
    MILLRACE_CHECK(!view || testing::same_bits(*view, stream->view()), stream->count());
  }
  if (!stream) return;
  MILLRACE_CHECK(validate(stream->view()).has_value(), stream->dimension);
  for (const float value : stream->values) MILLRACE_CHECK(std::isfinite(value), value);
  const auto again = encode_container(stream->view(), {}, {});
  MILLRACE_CHECK(again && again->exact, stream->count());
  const auto back = read_container(again->bytes, {});
  MILLRACE_CHECK(back && same(*back, *stream), stream->count());
}

void fuzz(ByteSpan bytes) {
  if (slow(bytes)) return;
  ByteBuffer copy(bytes.begin(), bytes.end());  // exact length: the sanitizer sees a read behind the end
  read(copy);
  if (copy.size() < kContainerHeaderBytes) return;
  const ByteSpan all(copy);
  const uint64_t checksum = hash64(all.subspan(kContainerHeaderBytes), hash64(all.first(56)));
  std::memcpy(copy.data() + 56, &checksum, sizeof(checksum));
  read(copy);
}

}  // namespace
}  // namespace millrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::fuzz({data, size});
  return 0;
}
