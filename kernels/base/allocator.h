#pragma once

#include <cstdint>

namespace millrace {

/// Size below which blocks of malloc come from a heap, whose freed pages stay. At most this many bytes stay free at the
/// end of each heap (glibc: one a thread at most).
inline constexpr uint64_t kFreedBytesKept = uint64_t{256} << 20;

/// Tells malloc, for the whole process, to keep freed memory instead of returning it to the system. A round's buffers
/// have the sizes of the round before, and fresh ones would cost a page fault a page.
///
/// The one policy of Millrace. Millrace's programs that do rounds, or measure them, call this. Its library does so only
/// where the application asks for it (WorkerConfig::keep_freed_memory): the allocator belongs to the host process.
///
/// Returns  false where the allocator takes no such advice, as those of sanitizers do: then nothing changes.
/// Threads  any. The setting holds for blocks allocated from now on.
bool keep_freed_memory();

}  // namespace millrace
