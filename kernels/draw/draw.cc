#include "kernels/draw/draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/magnitude/value_chunks.h"

namespace millrace {
namespace {

struct DrawChunk {
  IndexBuffer positions;
  Buffer<float> drawn;
  size_t used = 0;
};

/// Whether the uniform number of (word, more words) is below p < 1.
bool falls_below(uint32_t word, double p, RandomKey key, uint64_t at) {
  const double from = static_cast<double>(word) * 0x1p-32;
  if (from >= p) return false;
  if (from + 0x1p-32 <= p) return true;
  const double rest = (static_cast<double>(random_words(key, at, kRefineStream)[0]) + 0.5) * 0x1p-32;
  return rest < (p - from) * 0x1p32;
}

size_t candidates_of(const float* values, const uint32_t* words, size_t count, float magnitude, uint32_t* positions) {
  // Outside, the inverse is no normal number, and all are candidates.
  if (magnitude > 0x1p-125f && magnitude < 0x1p125f) {
    return draw_candidates_f32(values, words, count, 1 / magnitude, positions);
  }
  std::iota(positions, positions + count, 0u);
  return count;
}

void draw_block(const float* values, size_t count, uint64_t first, float magnitude, RandomKey key, DrawChunk& out) {
  std::array<uint32_t, kScanBlock> words;
  std::array<uint32_t, kScanBlock + kScanSlack> candidates;
  random_fill(key, first, std::span(words).first(count), kDrawStream);
  const size_t found = candidates_of(values, words.data(), count, magnitude, candidates.data());
  if (out.positions.size() < out.used + found) {
    const size_t room = std::max(out.used + found, 2 * out.used);
    out.positions.resize(room);
    out.drawn.resize(room);
  }
  for (size_t i = 0; i < found; ++i) {
    const uint32_t at = candidates[i];
    const float value = values[at];
    const float size = std::abs(value);
    const bool exact = size >= magnitude;
    if (!exact &&
        !falls_below(words[at], static_cast<double>(size) / static_cast<double>(magnitude), key, first + at)) {
      continue;
    }
    out.positions[out.used] = static_cast<uint32_t>(first + at);
    out.drawn[out.used] = exact ? value : std::copysign(magnitude, value);
    ++out.used;
  }
}

}  // namespace

void draw_by_size(std::span<const float> values, float magnitude, RandomKey key, IndexBuffer& positions,
                  Buffer<float>& drawn) {
  std::vector<DrawChunk> chunks((values.size() + kValueChunk - 1) / kValueChunk);
  for_chunks(chunks.size(), [&](size_t chunk) {
    const size_t end = std::min(values.size(), (chunk + 1) * kValueChunk);
    for (size_t at = chunk * kValueChunk; at < end; at += kScanBlock) {
      draw_block(values.data() + at, std::min(kScanBlock, end - at), at, magnitude, key, chunks[chunk]);
    }
  });
  size_t total = 0;
  for (const DrawChunk& chunk : chunks) total += chunk.used;
  positions.resize(total);
  drawn.resize(total);
  size_t used = 0;
  for (const DrawChunk& chunk : chunks) {
    std::copy_n(chunk.positions.begin(), chunk.used, positions.begin() + static_cast<ptrdiff_t>(used));
    std::copy_n(chunk.drawn.begin(), chunk.used, drawn.begin() + static_cast<ptrdiff_t>(used));
    used += chunk.used;
  }
}

float finite_magnitude(double value) {
  using Limits = std::numeric_limits<float>;
  if (value >= static_cast<double>(Limits::max())) return Limits::max();
  return std::max(static_cast<float>(value), Limits::denorm_min());
}

std::unexpected<Error> refuse_non_finite() {
  return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
}

Status fits_scaled(std::span<const float> values, double scale) { return fits_scaled(max_key(values), scale); }

Status fits_scaled(MagnitudeKey largest, double scale) {
  if (largest >= kInfinityKey) return refuse_non_finite();
  const double scaled = static_cast<double>(magnitude_of_key(largest)) * scale;
  if (scaled <= static_cast<double>(std::numeric_limits<float>::max())) return {};
  return fail(ErrorCode::kNonFinite, "a value that is scaled up to be unbiased would overflow");
}

}  // namespace millrace
