#pragma once

namespace millrace::peer {

/// Makes the calling thread one that the system wakes soon: short turns, and in return before those who compute. For threads that
/// sleep most of the time. Where the kernel does not know it (Linux before 6.12), nothing changes.
void take_short_slices();

}  // namespace millrace::peer
