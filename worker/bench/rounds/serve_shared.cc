#include "worker/bench/rounds/serve_shared.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace millrace::bench {

Result<std::unique_ptr<ServeShared>> ServeShared::create(uint32_t workers, uint32_t rounds) {
  std::unique_ptr<ServeShared> shared(new ServeShared);
  shared->workers_ = workers;
  constexpr size_t kBarrierBytes = (sizeof(pthread_barrier_t) + 63) / 64 * 64;
  const size_t report_bytes = workers * sizeof(ServeWorkerReport);
  shared->memory_bytes_ = kBarrierBytes + report_bytes + 2 * sizeof(TimeNs) * workers * rounds;
  void* memory = ::mmap(nullptr, shared->memory_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return fail(ErrorCode::kIo, std::string("cannot map shared memory: ") + std::strerror(errno));
  shared->memory_ = memory;
  auto* bytes = static_cast<uint8_t*>(memory);
  shared->barrier_ = new (bytes) pthread_barrier_t;
  shared->reports_ = new (bytes + kBarrierBytes) ServeWorkerReport[workers];
  shared->times_ = new (bytes + kBarrierBytes + report_bytes) TimeNs[2 * static_cast<size_t>(workers) * rounds];
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  const int made = pthread_barrier_init(shared->barrier_, &attributes, workers);
  pthread_barrierattr_destroy(&attributes);
  if (made != 0) return fail(ErrorCode::kIo, std::string("cannot make a barrier: ") + std::strerror(made));
  return shared;
}

ServeShared::~ServeShared() {
  // The barrier is not destroyed: a killed worker may have left it in use, and destroying would wait for it.
  if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
}

void ServeShared::meet() { pthread_barrier_wait(barrier_); }

double ServeShared::round_ms(uint32_t round) {
  TimeNs first = start_ns(0, round);
  TimeNs last = end_ns(0, round);
  for (uint32_t worker = 1; worker < workers_; ++worker) {
    first = std::min(first, start_ns(worker, round));
    last = std::max(last, end_ns(worker, round));
  }
  return static_cast<double>(last - first) / static_cast<double>(kNsPerMs);
}

}  // namespace millrace::bench
