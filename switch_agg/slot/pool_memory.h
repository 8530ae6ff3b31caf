#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace millrace::switch_agg {

/// Zeros that live as long as a pool, on huge pages where the machine gives them: contributions touch sums at random,
/// and with pages of 4 KiB most of a packet's time goes into looking them up (three times the time a packet with 64
/// slots of 65,536 indices). What does not fill a huge page begins at a cache line and takes no more than it needs. All
/// of it is written once here, so that no packet touches a page first.
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
