#include "kernels/magnitude/magnitude_scan.h"

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "kernels/magnitude/value_chunks.h"

namespace millrace {
namespace {

// Below this many entries a task's start costs more than a second core saves.
constexpr size_t kParallelFrom = size_t{1} << 20;

size_t scan_threads(size_t count) {
  if (count < kParallelFrom) return 1;
  const size_t allowed = tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  const size_t arena = static_cast<size_t>(std::max(1, tbb::this_task_arena::max_concurrency()));
  return std::min(allowed, arena);
}

// Makes room for `more` entries after `used`, at least doubling; contents are kept.
void grow(Buffer<uint32_t>& buffer, size_t used, size_t more) {
  if (buffer.size() < used + more) buffer.resize(std::max(used + more, 2 * used));
}

// One thread's scan of [begin, end). keys may be null: then they go to a block's scratch only.
ScanEnd scan_range(std::span<const float> values, size_t begin, size_t end, MagnitudeKey key_min, uint64_t limit,
                   IndexBuffer& positions, Buffer<MagnitudeKey>* keys) {
  std::array<MagnitudeKey, kScanBlock + kScanSlack> scratch;
  size_t used = 0;
  ScanEnd result = ScanEnd::kComplete;
  for (size_t at = begin; at < end; at += kScanBlock) {
    const size_t count = std::min(kScanBlock, end - at);
    grow(positions, used, count + kScanSlack);
    if (keys != nullptr) grow(*keys, used, count + kScanSlack);
    MagnitudeKey* const block_keys = keys != nullptr ? keys->data() + used : scratch.data();
    const size_t found =
        scan_block(values.data() + at, count, static_cast<uint32_t>(at), key_min, positions.data() + used, block_keys);
    MagnitudeKey largest = 0;
    for (size_t i = 0; i < found; ++i) largest = std::max(largest, block_keys[i]);
    used += found;
    if (largest >= kInfinityKey) result = ScanEnd::kNonFinite;
    if (result == ScanEnd::kComplete && used > limit) result = ScanEnd::kOverLimit;
    if (result != ScanEnd::kComplete) break;
  }
  positions.resize(used);
  if (keys != nullptr) keys->resize(used);
  return result;
}

struct MagnitudeScanChunk {
  IndexBuffer positions;
  Buffer<MagnitudeKey> keys;
  ScanEnd end = ScanEnd::kComplete;
};

void append(Buffer<uint32_t>& to, const Buffer<uint32_t>& from) {
  const size_t at = to.size();
  to.resize(at + from.size());
  std::copy(from.begin(), from.end(), to.begin() + static_cast<ptrdiff_t>(at));
}

ScanEnd collect(std::span<const float> values, MagnitudeKey key_min, uint64_t limit, IndexBuffer& positions,
                Buffer<MagnitudeKey>* keys) {
  const size_t threads = scan_threads(values.size());
  if (threads <= 1) return scan_range(values, 0, values.size(), key_min, limit, positions, keys);
  // A few chunks a thread even out other load of the machine; whole blocks each.
  const size_t blocks = (values.size() + kScanBlock - 1) / kScanBlock;
  const size_t chunk_entries = ((blocks + 4 * threads - 1) / (4 * threads)) * kScanBlock;
  std::vector<MagnitudeScanChunk> chunks((values.size() + chunk_entries - 1) / chunk_entries);
  for_chunks(chunks.size(), [&](size_t c) {
    MagnitudeScanChunk& chunk = chunks[c];
    const size_t begin = c * chunk_entries;
    chunk.end = scan_range(values, begin, std::min(values.size(), begin + chunk_entries), key_min, limit,
                           chunk.positions, keys != nullptr ? &chunk.keys : nullptr);
  });
  uint64_t total = 0;
  ScanEnd end = ScanEnd::kComplete;
  for (const MagnitudeScanChunk& chunk : chunks) {
    total += chunk.positions.size();
    end = std::max(end, chunk.end);
  }
  if (end == ScanEnd::kComplete && total > limit) end = ScanEnd::kOverLimit;
  positions.clear();
  if (keys != nullptr) keys->clear();
  if (end != ScanEnd::kComplete) return end;
  positions.reserve(total);
  if (keys != nullptr) keys->reserve(total);
  for (const MagnitudeScanChunk& chunk : chunks) {
    append(positions, chunk.positions);
    if (keys != nullptr) append(*keys, chunk.keys);
  }
  return end;
}

}  // namespace

ScanEnd collect_at_least(std::span<const float> values, MagnitudeKey key_min, uint64_t limit, Candidates& candidates) {
  return collect(values, key_min, limit, candidates.positions, &candidates.keys);
}

ScanEnd collect_positions(std::span<const float> values, MagnitudeKey key_min, uint64_t limit, IndexBuffer& positions) {
  return collect(values, key_min, limit, positions, nullptr);
}

uint64_t count_at_least(std::span<const float> values, MagnitudeKey key_min) {
  std::array<uint32_t, kScanBlock + kScanSlack> positions;
  std::array<MagnitudeKey, kScanBlock + kScanSlack> keys;
  uint64_t total = 0;
  for (size_t at = 0; at < values.size(); at += kScanBlock) {
    const size_t count = std::min(kScanBlock, values.size() - at);
    total += scan_block(values.data() + at, count, 0, key_min, positions.data(), keys.data());
  }
  return total;
}

}  // namespace millrace
