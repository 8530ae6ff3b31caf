#include "worker/cli/process/allocator.h"

#include <malloc.h>

namespace millrace::cli {

void keep_freed_memory() {
  constexpr int kBytes = 256 << 20;
  mallopt(M_MMAP_THRESHOLD, kBytes);
  mallopt(M_TRIM_THRESHOLD, kBytes);
}

}  // namespace millrace::cli
