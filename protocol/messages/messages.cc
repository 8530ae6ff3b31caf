#include "protocol/messages/messages.h"

#include <array>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"

namespace millrace::protocol {

Body::Body() = default;
Body::Body(const Body&) = default;
Body::Body(Body&&) noexcept = default;
Body& Body::operator=(const Body&) = default;
Body& Body::operator=(Body&&) noexcept = default;
Body::~Body() = default;
bool Body::operator==(const Body& other) const {
  return static_cast<const AnyBody&>(*this) == static_cast<const AnyBody&>(other);
}

uint64_t histogram_hash(uint64_t job, const ThresholdHistogram& body, ByteSpan payload) {
  ByteBuffer about;
  ByteWriter writer(about);
  writer.put(job);
  writer.put(body.bucket);
  writer.put(body.step);
  return hash64(payload, hash64(about));
}

std::string_view body_name(const Body& body) {
  // In the order of the variant's alternatives.
  static constexpr std::array<std::string_view, std::variant_size_v<AnyBody>> kNames = {
      "hello", "welcome",   "refuse",      "view_change",         "contribution", "duplicate", "update",  "settled",
      "ack",   "heartbeat", "shard_hello", "threshold_histogram", "goodbye",      "abort",     "collect", "state",
      "fetch", "fetched",   "settle",      "snapshot_request",    "snapshot",     "synced",    "pull",    "pulled",
      "place"};
  return kNames[body.index()];
}

}  // namespace millrace::protocol
