#include "protocol/messages.h"

#include <array>

namespace millrace::protocol {

std::string_view body_name(const Body& body) {
  // In the order of the variant's alternatives.
  static constexpr std::array<std::string_view, std::variant_size_v<Body>> kNames = {
      "hello",   "welcome", "refuse",    "view_change", "contribution",        "duplicate", "update",
      "settled", "ack",     "heartbeat", "shard_hello", "threshold_histogram", "goodbye",   "abort"};
  return kNames[body.index()];
}

}  // namespace millrace::protocol
