#include "kernels/base/allocator.h"

#include <malloc.h>

namespace millrace {

bool keep_freed_memory() {
  // glibc before 2.35 refuses a threshold over 32 MiB. The threshold is set first: without it the next call would end
  // glibc's own adjustment of it, at 128 KiB.
  constexpr int kOldThresholdMax = 32 << 20;
  const int kept = static_cast<int>(kFreedBytesKept);
  if (::mallopt(M_MMAP_THRESHOLD, kept) == 0 && ::mallopt(M_MMAP_THRESHOLD, kOldThresholdMax) == 0) return false;
  return ::mallopt(M_TRIM_THRESHOLD, kept) != 0;
}

}  // namespace millrace
