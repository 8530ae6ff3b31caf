#include "protocol/messages/log_digest.h"

#include <array>
#include <cstring>

#include "kernels/base/hash.h"
#include "protocol/container/container.h"

namespace millrace::protocol {
namespace {

struct Step {
  uint32_t part = 0;
  uint32_t contributors = 0;
  uint64_t step = 0;
  double weight_sum = 0;
  uint64_t identity = 0;
};

uint64_t extend(uint64_t digest, const Step& with) {
  std::array<uint8_t, 40> bytes;
  size_t at = 0;
  const auto put = [&](auto value) {
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    at += sizeof(value);
  };
  put(digest);
  put(with.part);
  put(with.contributors);
  put(with.step);
  put(with.weight_sum);
  put(with.identity);
  return hash64(ByteSpan(bytes));
}

}  // namespace

uint64_t extend_log_digest(uint64_t digest, const Update& update, ByteSpan payload) {
  if (update.merged.empty()) {
    return extend(digest, {update.part, static_cast<uint32_t>(update.contributors.size()), update.step,
                           update.weight_sum, container_identity(payload).value_or(0)});
  }
  uint64_t step = update.first_step();
  for (const MergedStep& one : update.merged) {
    digest = extend(digest, {update.part, 1, step++, one.weight, one.identity});
  }
  return digest;
}

}  // namespace millrace::protocol
