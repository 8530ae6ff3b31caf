#include "switch_agg/slot/pool_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <new>

namespace millrace::switch_agg {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

constexpr std::align_val_t alignment_of(size_t bytes) {
  constexpr size_t kCacheLine = 64;
  return std::align_val_t{bytes < kHugePageBytes ? kCacheLine : kHugePageBytes};
}

}  // namespace

template <typename T>
PoolMemory<T>::PoolMemory(size_t count) : count_(count) {
  const size_t bytes = std::max<size_t>(count * sizeof(T), 1);
  void* const memory = ::operator new(bytes, alignment_of(bytes));
  memory_ = std::unique_ptr<T[], Free>(static_cast<T*>(memory), Free{bytes});
  // Advice: where it is not taken, pages are small.
  if (bytes >= kHugePageBytes) (void)madvise(memory, bytes, MADV_HUGEPAGE);
  std::uninitialized_value_construct_n(memory_.get(), count);
}

template <typename T>
void PoolMemory<T>::Free::operator()(T* memory) const {
  ::operator delete(static_cast<void*>(memory), alignment_of(bytes));
}

template class PoolMemory<int32_t>;
template class PoolMemory<uint16_t>;
template class PoolMemory<uint64_t>;
template class PoolMemory<uint8_t>;

}  // namespace millrace::switch_agg
