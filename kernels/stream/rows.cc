#include "kernels/stream/rows.h"

#include <algorithm>
#include <string>

#include "kernels/base/check.h"

namespace millrace {

Status check_rows(uint32_t width, std::span<const uint32_t> rows, uint64_t count, uint64_t dimension) {
  if (width == 0) return fail(ErrorCode::kInvalidArgument, "rows of 0 entries");
  const bool single = width == 1;
  if (count % width != 0 || count / width != rows.size()) {
    const std::string many = std::to_string(rows.size()) + (single ? " indices" : " rows of " + std::to_string(width));
    return fail(ErrorCode::kInvalidArgument, many + " and " + std::to_string(count) + " places for them");
  }
  if (rows.empty()) return {};
  const uint32_t last = std::ranges::max(rows);
  if (last < dimension / width) return {};
  return fail(ErrorCode::kInvalidArgument, (single ? "index " : "row ") + std::to_string(last) +
                                               " of a tensor of dimension " + std::to_string(dimension) +
                                               (single ? "" : ", in rows of " + std::to_string(width)));
}

void indices_of_rows(uint32_t width, std::span<const uint32_t> rows, std::span<uint32_t> out) {
  MILLRACE_CHECK(out.size() == rows.size() * width, out.size(), rows.size(), width);
  uint32_t* to = out.data();
  for (const uint32_t row : rows) {
    const uint32_t first = row * width;
    for (uint32_t at = 0; at < width; ++at) to[at] = first + at;
    to += width;
  }
}

}  // namespace millrace
