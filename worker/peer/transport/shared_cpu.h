#pragma once

#include "kernels/base/clock.h"

namespace millrace::peer {

/// How a thread that works now and then gets on beside one on the same core that always computes. Linux lets who wakes
/// up go before who runs, unless it has had more than its share: then it waits for a tick of the clock, 4 ms at 250 Hz.
/// So who has worked sleeps for as long first.
///
/// Pure: it is told all times. One thread's own.
class CoreShare {
 public:
  /// The thread works from now on; `cpu`: its processor time.
  void works(TimeNs now, TimeNs cpu);
  /// It has nothing to do from now on. Returns how long it sleeps at least: what it has worked, less what others worked
  /// meanwhile; 0 where nothing says that others want its core.
  TimeNs rests(TimeNs now, TimeNs cpu) const;
  /// It slept until now, and was woken so much later than it wanted to be.
  void woke(TimeNs now, TimeNs late);

 private:
  TimeNs works_since_ = 0;
  TimeNs cpu_before_ = 0;
  TimeNs shared_until_ = 0;  ///< as far as is known
};

}  // namespace millrace::peer
