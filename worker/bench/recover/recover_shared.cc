#include "worker/bench/recover/recover_shared.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>

namespace millrace::bench {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<TimeNs>::is_always_lock_free);

Result<std::unique_ptr<RecoverShared>> RecoverShared::create(uint32_t serials, uint32_t pushes_max) {
  std::unique_ptr<RecoverShared> shared(new RecoverShared);
  shared->pushes_max_ = pushes_max;
  constexpr size_t kHeadBytes = 64;
  const size_t process_bytes = serials * sizeof(RecoverProcess);
  const size_t rounds = static_cast<size_t>(serials) * pushes_max;
  shared->memory_bytes_ = kHeadBytes + process_bytes + rounds * sizeof(RecoverRound);
  void* memory = ::mmap(nullptr, shared->memory_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return fail(ErrorCode::kIo, std::string("cannot map shared memory: ") + std::strerror(errno));
  shared->memory_ = memory;
  auto* bytes = static_cast<uint8_t*>(memory);
  shared->end_step_ = new (bytes) std::atomic<uint64_t>(UINT64_MAX);
  shared->processes_ = new (bytes + kHeadBytes) RecoverProcess[serials];
  shared->rounds_ = new (bytes + kHeadBytes + process_bytes) RecoverRound[rounds];
  return shared;
}

RecoverShared::~RecoverShared() {
  if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
}

}  // namespace millrace::bench
