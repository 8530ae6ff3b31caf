#include "kernels/reduce/reduce.h"

namespace millrace {

Result<Stream> concatenate(std::span<const StreamView> pieces) {
  uint64_t dimension = 0, count = 0;
  bool dense = !pieces.empty();
  for (const StreamView& piece : pieces) {
    if (piece.dimension > kDimensionMax - dimension) {
      return fail(ErrorCode::kInvalidArgument, "the pieces' dimensions add up to more than 2^32");
    }
    dimension += piece.dimension;
    count += piece.count();
    dense &= piece.dense;
  }
  Stream out;
  out.dimension = dimension;
  out.dense = dense;
  out.values.reserve(count);
  if (!dense) out.indices.reserve(count);
  uint64_t base = 0;
  for (const StreamView& piece : pieces) {
    out.values.insert(out.values.end(), piece.values.begin(), piece.values.end());
    const size_t at = out.indices.size();
    if (!dense) out.indices.resize(at + piece.count());
    for (size_t i = 0; i < piece.count() && !dense; ++i) {
      out.indices[at + i] = static_cast<uint32_t>(base + (piece.dense ? i : piece.indices[i]));
    }
    base += piece.dimension;
  }
  return out;
}

}  // namespace millrace
