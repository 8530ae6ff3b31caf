#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace millrace::switch_agg {

/// Holds zeros that live as long as a pool, on huge pages where the machine has them. Contributions touch sums at
/// random. With pages of 4 KiB most of a packet's time is spent on page translation. A packet takes three times as long
/// with 64 slots of 65,536 indices. A block smaller than a huge page begins at a cache line and takes no more memory
/// than it needs. The constructor writes all of it once, so that no packet touches a page first.
template <typename T>
class PoolMemory {
 public:
  explicit PoolMemory(size_t count);
  std::span<T> span() { return {memory_.get(), count_}; }

 private:
  struct Free {
    size_t bytes = 0;
    void operator()(T* memory) const;
  };
  size_t count_;
  std::unique_ptr<T[], Free> memory_;
};

}  // namespace millrace::switch_agg
