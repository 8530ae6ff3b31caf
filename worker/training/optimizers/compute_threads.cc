#include "worker/training/optimizers/compute_threads.h"

#include <algorithm>

namespace millrace::training {

ComputeThreads::ComputeThreads(uint32_t count) : count_(std::max(count, 1u)) {
  for (uint32_t at = 1; at < count_; ++at) threads_.emplace_back([this, at] { serve(at); });
}

ComputeThreads::~ComputeThreads() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  begun_.notify_all();
}

void ComputeThreads::run(const std::function<void(uint32_t)>& part) {
  if (count_ > 1) {
    {
      const std::lock_guard lock(mutex_);
      part_ = &part;
      ++calls_;
      running_ = count_ - 1;
    }
    begun_.notify_all();
  }
  part(0);
  if (count_ == 1) return;
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return running_ == 0; });
}

void ComputeThreads::serve(uint32_t at) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begun_.wait(lock, [&] { return closing_ || calls_ > seen; });
    if (closing_) return;
    seen = calls_;
    const std::function<void(uint32_t)>& part = *part_;
    lock.unlock();
    part(at);
    lock.lock();
    if (--running_ == 0) ended_.notify_one();
  }
}

}  // namespace millrace::training
