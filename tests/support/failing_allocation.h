#pragma once

#include <cstdint>

namespace millrace::testing {

/// While it lives, the operator new number `at` (from 0) of this thread throws std::bad_alloc, once, or with every one after it.
/// For programs that list failing_allocation.cc.
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

}  // namespace millrace::testing
