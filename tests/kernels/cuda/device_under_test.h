#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/queue/device_queue.h"

namespace millrace::cuda {

/// Kernels on the first card of this machine; without one the tests skip.
struct DeviceUnderTest {
  using Queue = DeviceQueue;
  static std::string why_not() { return device_count() == 0 ? "no CUDA device on this machine" : std::string(); }
  static std::vector<std::unique_ptr<DeviceQueue>> queues() {
    std::vector<std::unique_ptr<DeviceQueue>> queues;
    auto queue = DeviceQueue::make(0);
    EXPECT_TRUE(queue.has_value()) << (queue ? "" : queue.error().message);
    if (queue) queues.push_back(std::move(*queue));
    return queues;
  }
};

using QueuesUnderTest = ::testing::Types<DeviceUnderTest>;

}  // namespace millrace::cuda
