#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "worker/core/residual/device_residual.h"

/// The place of the residuals in tests of devices. CMake chooses it: host_place.cc has HostQueue, card_place.cc the
/// first card of the machine.
namespace millrace::worker {

/// Says why the place is not here; empty: it is.
std::string why_no_device();

/// A test that skips where the place is not here.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// Holds a gradient in the memory of the place. It converts to the view that a push takes.
class GradientThere {
 public:
  explicit GradientThere(std::span<const float> values);
  ~GradientThere();
  GradientThere(const GradientThere&) = delete;
  GradientThere& operator=(const GradientThere&) = delete;
  operator DeviceGradient() const;

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

/// The allocations that succeed there from now on, of all residuals: a device whose memory others use.
struct ScarceMemory {
  static constexpr uint64_t kPlenty = std::numeric_limits<uint64_t>::max();
  static inline uint64_t left = kPlenty;

  /// Counts an allocation of `count` values. Returns whether it succeeds.
  static bool takes(size_t count) {
    if (left == 0) return count == 0;
    if (left != kPlenty && count != 0) --left;
    return true;
  }
};

/// Makes a residual there.
Result<std::unique_ptr<DeviceResidual>> make_there(const SelectionSpec& spec, uint64_t dimension);

/// Return the bytes that crossed the bus for the residual that was made last, which lives.
uint64_t bytes_up();
uint64_t bytes_down();

}  // namespace millrace::worker
