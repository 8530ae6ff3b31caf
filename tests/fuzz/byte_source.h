#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"

namespace millrace::testing {

/// The fuzzer's bytes as a source of choices; zeros once they have run out.
class ByteSource {
 public:
  ByteSource(const uint8_t* data, size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  uint8_t byte() {
    if (rest_.empty()) return 0;
    const uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  uint32_t below(uint32_t bound) { return byte() % bound; }
  bool one_in(uint32_t bound) { return below(bound) == 0; }
  /// Mostly small, now and then huge: counters and identities near each other collide, far ones overflow.
  uint64_t number(uint32_t small) {
    const uint8_t first = byte();
    if (first < 240) return first % small;
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  ByteBuffer bytes(size_t most) {
    const size_t count = std::min<size_t>({byte(), most, rest_.size()});
    ByteBuffer out(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(count));
    rest_ = rest_.subspan(count);
    return out;
  }

 private:
  std::span<const uint8_t> rest_;
};

}  // namespace millrace::testing
