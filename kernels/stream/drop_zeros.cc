#include "kernels/stream/drop_zeros.h"

namespace millrace {

void drop_zeros(Stream& stream) {
  if (stream.dense) return;
  size_t kept = 0;
  for (size_t i = 0; i < stream.values.size(); ++i) {
    stream.indices[kept] = stream.indices[i];
    stream.values[kept] = stream.values[i];
    kept += stream.values[i] != 0 ? 1 : 0;
  }
  stream.indices.resize(kept);
  stream.values.resize(kept);
}

}  // namespace millrace
