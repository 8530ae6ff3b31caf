#include "worker/peer/group/short_time_slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace millrace::peer {
namespace {

/// The kernel's struct sched_attr, first version: what libc has of it clashes with its own header, or is not there.
struct SchedulingAttributes {
  uint32_t size = 0;
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

}  // namespace

void take_slices(TimeNs slice) {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = static_cast<uint64_t>(slice);
  attributes.flags = 0;
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace millrace::peer
