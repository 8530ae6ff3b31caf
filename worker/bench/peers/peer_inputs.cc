#include "worker/bench/peers/peer_inputs.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/random.h"

namespace millrace::bench {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"uniform", "clustered", "same", "disjoint", "one_region"};
constexpr uint64_t kClusterLength = 64;
constexpr uint64_t kRegions = 16;

/// `count` different numbers below `bound`, ascending: drawn, or where that is more than half, all but those drawn.
IndexBuffer draw(uint64_t bound, uint64_t count, RandomSequence& draws) {
  const uint64_t drawn_count = std::min(count, bound - count);
  IndexBuffer drawn;
  drawn.reserve(drawn_count);
  while (drawn.size() < drawn_count) {
    while (drawn.size() < drawn_count) drawn.push_back(static_cast<uint32_t>(draws.next_below(bound)));
    std::ranges::sort(drawn);
    drawn.erase(std::ranges::unique(drawn).begin(), drawn.end());
  }
  if (drawn_count == count) return drawn;
  IndexBuffer others;
  others.reserve(count);
  auto next = drawn.begin();
  for (uint64_t index = 0; index < bound; ++index) {
    if (next != drawn.end() && *next == index) {
      ++next;
    } else {
      others.push_back(static_cast<uint32_t>(index));
    }
  }
  return others;
}

IndexBuffer draw_clusters(uint64_t n, uint64_t count, RandomSequence& draws) {
  const uint64_t blocks = n / kClusterLength;
  const uint64_t wanted = (count + kClusterLength - 1) / kClusterLength;
  if (wanted > blocks) return draw(n, count, draws);
  IndexBuffer indices;
  for (const uint32_t block : draw(blocks, wanted, draws)) {
    for (uint64_t i = 0; i < kClusterLength && indices.size() < count; ++i) {
      indices.push_back(static_cast<uint32_t>(block * kClusterLength + i));
    }
  }
  return indices;
}

IndexBuffer draw_within(uint64_t begin, uint64_t end, uint64_t count, RandomSequence& draws) {
  IndexBuffer indices = draw(end - begin, std::min(count, end - begin), draws);
  for (uint32_t& index : indices) index += static_cast<uint32_t>(begin);
  return indices;
}

IndexBuffer peer_inputs_indices_of(const PeerInputs& inputs, uint32_t rank, uint32_t size) {
  RandomSequence draws(RandomKey::from(inputs.seed), inputs.shape == InputShape::kSame ? 0 : rank);
  switch (inputs.shape) {
    case InputShape::kUniform:
    case InputShape::kSame: break;
    case InputShape::kClustered: return draw_clusters(inputs.n, inputs.count, draws);
    case InputShape::kDisjoint:
      return draw_within(inputs.n * rank / size, inputs.n * (rank + 1) / size, inputs.count, draws);
    case InputShape::kOneRegion:
      return draw_within(0, std::min(inputs.n, std::max(inputs.n / kRegions, 2 * inputs.count)), inputs.count, draws);
  }
  return draw_within(0, inputs.n, inputs.count, draws);
}

}  // namespace

std::span<const std::string_view> input_shape_names() { return kNames; }

std::optional<InputShape> input_shape_of(std::string_view name) {
  const auto at = std::ranges::find(kNames, name);
  if (at == kNames.end()) return std::nullopt;
  return static_cast<InputShape>(at - kNames.begin() + 1);
}

SharedStream peer_input(const PeerInputs& inputs, uint32_t rank, uint32_t size) {
  MILLRACE_CHECK(inputs.count > 0 && inputs.count <= inputs.n && rank < size, inputs.count, inputs.n, rank, size);
  Stream stream = Stream::empty(inputs.n);
  stream.indices = peer_inputs_indices_of(inputs, rank, size);
  stream.values.resize(stream.indices.size());
  RandomSequence draws(RandomKey::from(inputs.seed + 1), rank);
  for (float& value : stream.values) {
    const auto drawn = static_cast<int>(draws.next_below(2048));
    value = static_cast<float>(drawn < 1024 ? drawn - 1024 : drawn - 1023) / 64;
  }
  return SharedStream::from(std::move(stream));
}

}  // namespace millrace::bench
