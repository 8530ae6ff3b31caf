#include "worker/bench/kernels/peak_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>
#include <string_view>

namespace millrace::bench {
namespace {

/// A field of /proc/self/status, "VmRSS:  1234 kB", in bytes.
std::optional<uint64_t> status_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == field && status >> kib) return kib * 1024;
  }
  return std::nullopt;
}

/// From now on the peak is the present use.
bool forget_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << '5' << std::flush;
  return file.good();
}

}  // namespace

PeakMemory::PeakMemory() {
  malloc_trim(0);  // free memory is to be counted when it is taken again
  if (forget_peak()) before_ = status_bytes("VmRSS:");
}

std::optional<uint64_t> PeakMemory::bytes() const {
  const auto peak = status_bytes("VmHWM:");
  if (!before_ || !peak) return std::nullopt;
  return *peak > *before_ ? *peak - *before_ : 0;
}

}  // namespace millrace::bench
