#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/queue/host_queue.h"

namespace millrace::cuda {

/// Kernels on the host's loops: in order, and in another order of threads and blocks.
struct HostUnderTest {
  using Queue = HostQueue;
  static std::string why_not() { return {}; }
  static std::vector<std::unique_ptr<HostQueue>> queues() {
    std::vector<std::unique_ptr<HostQueue>> queues;
    queues.push_back(std::make_unique<HostQueue>());
    queues.push_back(std::make_unique<HostQueue>(HostOrder{37, 11}, HostOrder{5, 3}));
    return queues;
  }
};

using QueuesUnderTest = ::testing::Types<HostUnderTest>;

}  // namespace millrace::cuda
