#include "worker/cli/process/allocator.h"

#include <malloc.h>

namespace millrace::cli {

void keep_freed_memory(int bytes_max) {
  constexpr int kMappedFrom = 256 << 20;
  mallopt(M_MMAP_THRESHOLD, kMappedFrom);
  mallopt(M_TRIM_THRESHOLD, bytes_max);
}

}  // namespace millrace::cli
