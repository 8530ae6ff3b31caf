#pragma once

namespace millrace::cli {

/// Keeps freed memory in this process instead of returning it to the system: a round's buffers are of the sizes of the round
/// before, and taking them anew would cost a page fault a page. For processes that do little else than rounds.
///
/// bytes_max   that stay free at the end of the heap.
void keep_freed_memory(int bytes_max = 256 << 20);

}  // namespace millrace::cli
