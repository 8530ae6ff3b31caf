#include "protocol/log_digest.h"

#include <array>
#include <cstring>

#include "kernels/base/hash.h"
#include "protocol/container.h"

namespace millrace::protocol {

uint64_t extend_log_digest(uint64_t digest, const Update& update, ByteSpan payload) {
  std::array<uint8_t, 40> bytes;
  size_t at = 0;
  const auto put = [&](auto value) {
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    at += sizeof(value);
  };
  put(digest);
  put(update.part);
  put(static_cast<uint32_t>(update.contributors.size()));
  put(update.step);
  put(update.weight_sum);
  put(container_identity(payload).value_or(0));
  return hash64(ByteSpan(bytes));
}

}  // namespace millrace::protocol
