#pragma once

#include "kernels/base/clock.h"

namespace millrace::peer {

/// Decides how long a thread that works at intervals should sleep, on a core that another thread always uses. Linux
/// lets a waking thread preempt the running one, unless it has had more than its share. Then it waits for a tick of the
/// clock, 4 ms at 250 Hz. So a thread that has worked sleeps for as long first.
///
/// Pure: its caller passes all times. One thread's own.
class CoreShare {
 public:
  /// Notes that the thread works from now on; `cpu`: its processor time.
  void works(TimeNs now, TimeNs cpu);
  /// Returns the minimum sleep of the thread, which has nothing to do from now on. It is the time that it worked less
  /// the time that others worked meanwhile; 0 where no other thread is known to need its core.
  TimeNs rests(TimeNs now, TimeNs cpu) const;
  /// Notes that the thread slept until now, and woke later than planned by `late`.
  void woke(TimeNs now, TimeNs late);

 private:
  TimeNs works_since_ = 0;
  TimeNs cpu_before_ = 0;
  TimeNs shared_until_ = 0;  ///< as far as is known
};

}  // namespace millrace::peer
