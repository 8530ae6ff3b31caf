#include "tests/support/replaced_new.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace {

std::atomic<size_t> largest{0};
std::atomic<size_t> allocated{0};

thread_local bool armed = false;
thread_local bool stays_out = false;
thread_local bool has_failed = false;
thread_local uint64_t fails_at = 0;
thread_local uint64_t asked = 0;

void* take_nothrow(size_t bytes) noexcept {
  allocated.fetch_add(bytes, std::memory_order_relaxed);
  size_t before = largest.load(std::memory_order_relaxed);
  while (bytes > before && !largest.compare_exchange_weak(before, bytes, std::memory_order_relaxed)) {
  }
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* take(size_t bytes) {
  if (armed && !(has_failed && !stays_out)) {
    if (asked == fails_at) {
      has_failed = true;
      throw std::bad_alloc();
    }
    ++asked;
  }
  void* memory = take_nothrow(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return take(bytes); }
void* operator new[](size_t bytes) { return take(bytes); }
// Never made to fail: a caller of this form expects failure, and ZeroMQ then ends the process.
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return take_nothrow(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return take_nothrow(bytes); }
// Counted alone: memory of pools, which is taken at the start. The forms for arrays come here too.
void* operator new(size_t bytes, std::align_val_t alignment) {
  allocated.fetch_add(bytes, std::memory_order_relaxed);
  const auto align = static_cast<size_t>(alignment);
  void* memory = std::aligned_alloc(align, (bytes == 0 ? align : bytes + align - 1) / align * align);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace millrace::testing {

size_t largest_allocation() { return largest.load(std::memory_order_relaxed); }
void reset_largest_allocation() { largest.store(0, std::memory_order_relaxed); }

size_t allocated_bytes() { return allocated.load(std::memory_order_relaxed); }

FailingAllocation::FailingAllocation(uint64_t at, Then then) {
  fails_at = at;
  asked = 0;
  stays_out = then == Then::kStaysOut;
  has_failed = false;
  armed = true;
}
FailingAllocation::~FailingAllocation() { armed = false; }
bool FailingAllocation::failed() const { return has_failed; }
uint64_t FailingAllocation::taken() const { return asked; }

SparedAllocations::SparedAllocations() : armed_before_(std::exchange(armed, false)) {}
SparedAllocations::~SparedAllocations() { armed = armed_before_; }

}  // namespace millrace::testing
