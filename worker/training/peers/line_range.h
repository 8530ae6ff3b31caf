#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "kernels/base/result.h"

namespace millrace::training {

/// Fills the span with a file's bytes from an offset on.
using ReadAt = std::function<Status(uint64_t at, std::span<uint8_t> into)>;

/// Describes the part of a text file that a rank reads: its lines are those that begin in [begin, end), wherever they
/// end. So every line belongs to one rank, for any number of ranks.
struct LineShare {
  uint64_t file_bytes = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Returns a rank's range of bytes; the ranges are equal but for one byte. REQUIRES: rank < ranks.
LineShare line_share(uint64_t file_bytes, uint32_t rank, uint32_t ranks);

struct LineReadOptions {
  uint64_t block_bytes = uint64_t{1} << 20;
  uint64_t line_bytes_max = uint64_t{256} << 20;
  std::function<void()> between = {};  ///< after every block; empty: nothing
};

/// Hands on the lines of a share, in order, without their newline (a carriage return before it stays).
///
/// Bytes    reads its range, the byte before it, and the rest of its last line, rounded up to a block. A rank within a
///          line that began before its range reads no further than the range.
/// Errors   those of `read` and of `line`, which end it. malformed: a line longer than line_bytes_max.
Status for_each_line(const LineShare& share, const ReadAt& read, const std::function<Status(std::string_view)>& line,
                     const LineReadOptions& options = {});

}  // namespace millrace::training
