#include <dlfcn.h>
#include <pthread.h>

#include <bit>
#include <cerrno>

/// Replaces the C library's pthread_setschedparam() in programs that this file is linked into.
///
/// Why     each thread of ZeroMQ (4.3.4, thread.cpp) sets the scheduling policy that it already has, and aborts the
///         process where that is refused. systemd's SystemCallFilter=~@resources and profiles of containers refuse it.
/// Rule    Calls the library's function. Returns success for a change that changes nothing, even where the system
///         refuses the call.
/// Limits  A filter that kills the process (systemd's default action) leaves nothing to answer. A dynamic program's own
///         definition comes before the C library's, so that shared libraries find this one.
extern "C" int pthread_setschedparam(pthread_t target_thread, int policy, const sched_param* param) noexcept {
  using SetParameters = int (*)(pthread_t, int, const sched_param*);
  static const auto set = std::bit_cast<SetParameters>(::dlsym(RTLD_NEXT, "pthread_setschedparam"));
  const int refused = set == nullptr ? ENOSYS : set(target_thread, policy, param);
  if (refused != EPERM && refused != ENOSYS && refused != EACCES) return refused;
  int has_policy = 0;
  sched_param has{};
  const bool known = ::pthread_getschedparam(target_thread, &has_policy, &has) == 0;
  return known && has_policy == policy && has.sched_priority == param->sched_priority ? 0 : refused;
}
