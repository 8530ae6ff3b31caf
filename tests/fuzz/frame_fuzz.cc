// Feeds hostile bytes to the envelope decoder: an accepted envelope encodes and decodes to itself. The first byte is
// the payload's size.
#include "kernels/base/check.h"
#include "protocol/messages/frame.h"

namespace {

millrace::SharedBytes payload_of(size_t size) { return millrace::SharedBytes::from(millrace::ByteBuffer(size)); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using millrace::protocol::FrameLimits;
  if (size < 1) return 0;
  const millrace::SharedBytes payload = payload_of(data[0]);
  const FrameLimits limits{.envelope_bytes_max = 1 << 20, .payload_bytes_max = 128};
  const auto message = millrace::protocol::decode_message({data + 1, size - 1}, payload, limits);
  if (!message) {
    MILLRACE_CHECK(!message.error().message.empty());
    return 0;
  }
  MILLRACE_CHECK(message->payload.bytes.size() == payload.bytes.size());
  const auto again =
      millrace::protocol::decode_message(millrace::protocol::encode_envelope(*message), message->payload, {});
  MILLRACE_CHECK(again.has_value(), again.error().message);
  MILLRACE_CHECK(again->header == message->header && again->body == message->body);
  return 0;
}
