#include "worker/peer/channel/message_body.h"

namespace millrace::peer {
namespace {

class HeapBodies final : public BodyMemory {
 public:
  WritableBody take_body(size_t bytes) override { return heap_body(bytes); }
};

}  // namespace

WritableBody heap_body(size_t bytes) {
  auto kept = std::make_shared<ByteBuffer>(bytes);
  const std::span<uint8_t> all(*kept);
  return {std::move(kept), all};
}

BodyMemory& heap_bodies() {
  static HeapBodies bodies;
  return bodies;
}

}  // namespace millrace::peer
