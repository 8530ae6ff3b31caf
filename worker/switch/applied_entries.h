#pragma once

#include <cstdint>
#include <span>

namespace millrace::worker {

/// Writes the applied part of each entry: its whole integer where the window's update has its index in `applied`,
/// otherwise 0.
///
/// indices                   each is `begin` and an index in the window, modulo 2^32.
/// indices, integers, taken  of the same length; `taken` may be `integers`.
/// applied                   indices in the window, ascending.
/// Threads                   any; each has a window's bits of its own.
void take_applied(std::span<const uint32_t> indices, uint32_t begin, std::span<const int32_t> integers,
                  std::span<const uint16_t> applied, std::span<int32_t> taken);

}  // namespace millrace::worker
