#include "worker/bench/peers/peer_check.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/hash.h"

namespace millrace::bench {
namespace {

void add_to(std::vector<float>& target, const StreamView& stream) {
  for (size_t i = 0; i < stream.values.size(); ++i) target[stream.dense ? i : stream.indices[i]] += stream.values[i];
}

ByteSpan bytes_of(const auto& numbers) {
  const std::span all(numbers);
  return {std::bit_cast<const uint8_t*>(all.data()), all.size_bytes()};
}

}  // namespace

std::vector<float> summed_inputs(const PeerInputs& inputs, uint32_t size) {
  std::vector<float> sum(inputs.n);
  for (uint32_t rank = 0; rank < size; ++rank) add_to(sum, peer_input(inputs, rank, size).view);
  return sum;
}

uint64_t bits_of(const StreamView& stream) {
  return hash64(bytes_of(stream.values), hash64(bytes_of(stream.indices), stream.dense ? 1 : 0));
}

bool agrees(const StreamView& sum, std::span<const float> expected, float off) {
  if (sum.dimension != expected.size()) return false;
  const auto near = [off](float a, float b) { return std::abs(a - b) <= off; };
  if (sum.dense) return std::ranges::equal(sum.values, expected, near);
  size_t next = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    const bool here = next < sum.indices.size() && sum.indices[next] == index;
    if (!near(here ? sum.values[next] : 0, expected[index])) return false;
    next += here ? 1 : 0;
  }
  return next == sum.indices.size();
}

std::vector<float> residual_after(const peer::AlgorithmInfo& info, const StreamView& own,
                                  const peer::Reduced& reduced) {
  std::vector<float> kept(own.dimension);
  if (info.result == peer::ResultKind::kGlobalTopk) {
    add_to(kept, own);
    for (const uint32_t index : reduced.contributed) kept[index] = 0;
  }
  add_to(kept, reduced.returned.view());
  return kept;
}

}  // namespace millrace::bench
