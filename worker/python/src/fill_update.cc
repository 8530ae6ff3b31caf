#include "worker/python/src/fill_update.h"

#include <algorithm>
#include <limits>

#include "kernels/base/check.h"

namespace millrace::python {
namespace {

/// Entries that are zeroed before those of a piece among them are written: a core's cache holds them meanwhile.
constexpr size_t kBlock = size_t{1} << 13;

void write_piece(const UpdatePiece& piece, float factor, std::span<float> run) {
  if (piece.dense) {
    for (size_t at = 0; at < run.size(); ++at) run[at] = piece.values[at] * factor;
    return;
  }
  size_t at = 0;
  for (size_t begin = 0; begin < run.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, run.size());
    std::ranges::fill(run.subspan(begin, end - begin), 0.0F);
    for (; at < piece.indices.size() && piece.indices[at] < end; ++at)
      run[piece.indices[at]] = piece.values[at] * factor;
  }
}

void add_piece(const UpdatePiece& piece, float factor, std::span<float> run) {
  for (size_t at = 0; at < piece.values.size(); ++at) {
    run[piece.dense ? at : piece.indices[at]] += piece.values[at] * factor;
  }
}

}  // namespace

FilledUpdate fill_update(std::span<const UpdatePiece> pieces, double scale, std::span<float> out) {
  FilledUpdate filled{.entries = 0, .contributors = std::numeric_limits<uint32_t>::max()};
  uint64_t written = 0;
  for (const UpdatePiece& piece : pieces) {
    const uint64_t end = piece.begin + piece.dimension;
    MILLRACE_CHECK(end <= out.size() && end >= piece.begin, piece.begin, piece.dimension, out.size());
    const std::span<float> run = out.subspan(piece.begin, piece.dimension);
    const auto factor = static_cast<float>(scale / piece.denominator);
    if (piece.begin >= written) {
      std::ranges::fill(out.subspan(written, piece.begin - written), 0.0F);
      write_piece(piece, factor, run);
    } else {
      if (end > written) std::ranges::fill(out.subspan(written, end - written), 0.0F);
      add_piece(piece, factor, run);
    }
    written = std::max(written, end);
    filled.entries += piece.values.size();
    filled.contributors = std::min(filled.contributors, piece.contributors);
  }
  std::ranges::fill(out.subspan(written), 0.0F);
  if (pieces.empty()) filled.contributors = 0;
  return filled;
}

}  // namespace millrace::python
