#include "kernels/magnitude/tail_sums.h"

#include <algorithm>
#include <vector>

#include "kernels/magnitude/value_chunks.h"

namespace millrace {

TailSums tail_sums(std::span<const float> values, MagnitudeKey cut) {
  std::vector<TailSums> parts((values.size() + kValueChunk - 1) / kValueChunk);
  const auto sum_chunk = [&](size_t chunk) {
    const size_t begin = chunk * kValueChunk;
    parts[chunk] = tail_sums_f32(values.data() + begin, std::min(kValueChunk, values.size() - begin), cut);
  };
  for_chunks(parts.size(), sum_chunk);
  TailSums sums;
  for (const TailSums& part : parts) add_chunk(sums, part);
  return sums;
}

}  // namespace millrace
