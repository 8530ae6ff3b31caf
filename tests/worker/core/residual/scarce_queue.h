#pragma once

#include <cstdint>

#include "kernels/cuda/queue/host_queue.h"
#include "tests/worker/core/residual/device_place.h"

namespace millrace::worker {

/// A HostQueue whose allocations ScarceMemory limits.
class ScarceQueue : public cuda::HostQueue {
 public:
  template <class T>
  cuda::HostMemory<T> allocate(size_t count) {
    let_allocations_fail_after(ScarceMemory::takes(count) ? ScarceMemory::kPlenty : 0);
    return cuda::HostQueue::allocate<T>(count);
  }
};

}  // namespace millrace::worker
