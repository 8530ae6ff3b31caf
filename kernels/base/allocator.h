#pragma once

#include <cstdint>

namespace millrace {

/// Blocks of malloc below this size come from the heap, whose freed pages stay, and at most so many bytes stay free at
/// the end of each heap (glibc: one a thread at most).
inline constexpr uint64_t kFreedBytesKept = uint64_t{256} << 20;

/// Tells malloc, for the whole process, to keep freed memory instead of returning it to the system: a round's buffers
/// have the sizes of the round before, and taking them anew costs a page fault a page.
///
/// The one policy of Millrace. Its programs that do rounds, or measure them, call this; its library does so only where
/// the application asks for it (JobOptions::keep_freed_memory), since the allocator belongs to the host process.
///
/// Returns  false where the allocator takes no such advice, as those of sanitizers do: then nothing changes.
/// Threads  any. The setting holds for blocks allocated from now on.
bool keep_freed_memory();

}  // namespace millrace
