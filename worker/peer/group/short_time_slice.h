#pragma once

#include "kernels/base/clock.h"

namespace millrace::peer {

/// Makes the calling thread one that the system wakes soon: its time slices are `slice` long. In return it goes before
/// threads that compute, whose slices are longer (3 ms). For threads that sleep most of the time. Where the kernel does
/// not know it (Linux before 6.12), nothing changes.
///
/// slice  0.1 to 100 ms. A thread that works for longer at a time is interrupted, and then waits for a tick of the
///        clock. A thread that yields forfeits as much.
void take_slices(TimeNs slice);

}  // namespace millrace::peer
