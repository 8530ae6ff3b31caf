#include "tests/support/largest_allocation.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> largest{0};

void* take(size_t bytes) {
  size_t before = largest.load(std::memory_order_relaxed);
  while (bytes > before && !largest.compare_exchange_weak(before, bytes, std::memory_order_relaxed)) {
  }
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return take(bytes); }
void* operator new[](size_t bytes) { return take(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace millrace::testing {

size_t largest_allocation() { return largest.load(std::memory_order_relaxed); }
void reset_largest_allocation() { largest.store(0, std::memory_order_relaxed); }

}  // namespace millrace::testing
