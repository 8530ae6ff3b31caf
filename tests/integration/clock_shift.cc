#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

/// A library to preload (LD_PRELOAD): moves the wall clock of one process while it runs.
///
/// CLOCK_SHIFT_FILE names a file of 8 bytes, a native int64: the seconds to add to CLOCK_REALTIME from now on. Another
/// process writes it at any time. Monotonic clocks stay as they are, as when an operator or NTP sets the time of day.
namespace {

constexpr int kNoShift = 2;

/// Maps the file that CLOCK_SHIFT_FILE names. Ends the process where that fails: a test would pass without any shift.
const std::atomic<int64_t>* map_shift() {
  const char* path = std::getenv("CLOCK_SHIFT_FILE");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  void* mapped = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(std::atomic<int64_t>), PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    std::fputs("clock_shift: CLOCK_SHIFT_FILE names no file of 8 bytes\n", stderr);
    _exit(kNoShift);
  }
  close(file);
  return static_cast<const std::atomic<int64_t>*>(mapped);
}

int64_t shift_s() {
  static const std::atomic<int64_t>* const shift = map_shift();
  return shift->load(std::memory_order_relaxed);
}

bool is_wall_clock(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* at) noexcept {
  const int failed = static_cast<int>(syscall(SYS_clock_gettime, clock, at));
  if (failed == 0 && is_wall_clock(clock)) at->tv_sec += shift_s();
  return failed;
}

int gettimeofday(timeval* at, void*) noexcept {
  timespec now{};
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* at) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (at != nullptr) *at = now.tv_sec;
  return now.tv_sec;
}
}
