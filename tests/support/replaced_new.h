#pragma once

#include <cstddef>
#include <cstdint>

/// For programs that list replaced_new.cc: their operator new counts, and fails on request.
namespace millrace::testing {

/// The largest single operator new of this process since the last reset, on any thread.
size_t largest_allocation();
void reset_largest_allocation();
/// Returns the bytes of every operator new of this process since it began, of aligned ones too; frees do not count.
size_t allocated_bytes();

/// While it lives, the operator new number `at` (from 0) of this thread throws std::bad_alloc, once, or with every one
/// after it.
class FailingAllocation {
 public:
  enum class Then : uint8_t { kGoesOn, kStaysOut };
  FailingAllocation(uint64_t at, Then then);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  /// Was it asked so often?
  bool failed() const;
  /// How often it was asked, up to the one that failed.
  uint64_t taken() const;
};

/// While it lives no allocation of this thread fails or counts: around calls of a library that ends the process without
/// memory.
class SparedAllocations {
 public:
  SparedAllocations();
  ~SparedAllocations();
  SparedAllocations(const SparedAllocations&) = delete;
  SparedAllocations& operator=(const SparedAllocations&) = delete;

 private:
  bool armed_before_;
};

}  // namespace millrace::testing
