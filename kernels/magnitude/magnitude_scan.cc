#include "kernels/magnitude/magnitude_scan.h"

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/magnitude/magnitude_sample.h"
#include "kernels/magnitude/value_chunks.h"

namespace millrace {
namespace {

// Below this many entries a task's start costs more than a second core saves.
constexpr size_t kParallelFrom = size_t{1} << 20;
// Values of the sample that estimates whether more than 1 in kManyShare are found.
constexpr size_t kManySample = 1024;
constexpr size_t kManyShare = 8;

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

enum class Keys : uint8_t { kWritten, kLeftOut };

// Scans one block to positions and keys; keys only with Keys::kWritten.
ScannedBlock scan_one(std::span<const float> block, size_t position, MagnitudeKey key_min, Keys keys,
                      uint32_t* to_positions, MagnitudeKey* to_keys) {
  const auto first = static_cast<uint32_t>(position);
  if (keys == Keys::kLeftOut) return scan_positions(block.data(), block.size(), first, key_min, to_positions);
  return scan_block(block.data(), block.size(), first, key_min, to_positions, to_keys);
}

// One thread's scan of [begin, end).
ScanEnd scan_range(std::span<const float> values, size_t begin, size_t end, MagnitudeKey key_min, uint64_t limit,
                   Keys keys, Candidates& found) {
  size_t used = 0;
  ScanEnd result = ScanEnd::kComplete;
  for (size_t at = begin; at < end && result == ScanEnd::kComplete; at += kScanBlock) {
    const size_t count = std::min(kScanBlock, end - at);
    grow(found.positions, used, count + kScanSlack);
    if (keys == Keys::kWritten) grow(found.keys, used, count + kScanSlack);
    const ScannedBlock block = scan_one(values.subspan(at, count), at, key_min, keys, found.positions.data() + used,
                                        found.keys.data() + (keys == Keys::kWritten ? used : 0));
    used += block.found;
    if (used > limit) result = ScanEnd::kOverLimit;
    if (block.largest >= kInfinityKey) result = ScanEnd::kNonFinite;
  }
  found.positions.resize(used);
  found.keys.resize(keys == Keys::kWritten ? used : 0);
  return result;
}

// A collection by several threads, of chunks of whole blocks.
class ParallelScan {
 public:
  ParallelScan(std::span<const float> values, size_t threads, MagnitudeKey key_min, uint64_t limit, Keys keys)
      : values_(values), key_min_(key_min), limit_(limit), keys_(keys) {
    // A few chunks a thread even out other load of the machine.
    const size_t blocks = (values.size() + kScanBlock - 1) / kScanBlock;
    chunk_entries_ = ((blocks + 4 * threads - 1) / (4 * threads)) * kScanBlock;
    chunks_ = (values.size() + chunk_entries_ - 1) / chunk_entries_;
  }

  ScanEnd collect(Candidates& found) const { return finds_many() ? count_and_write(found) : write_and_join(found); }

 private:
  size_t begin_of(size_t chunk) const { return chunk * chunk_entries_; }
  size_t end_of(size_t chunk) const { return std::min(values_.size(), begin_of(chunk) + chunk_entries_); }

  // Estimates by a sample whether the arrays of write_and_join() would cost more than a second read pass.
  bool finds_many() const {
    if (limit_ <= values_.size() / kManyShare) return false;  // more would be over the limit
    size_t many = 0;
    for_each_sample(values_.size(), kManySample,
                    [&](size_t, size_t at) { many += magnitude_key(values_[at]) >= key_min_ ? 1 : 0; });
    return many > kManySample / kManyShare;
  }

  ScanEnd write_and_join(Candidates& found) const {
    std::vector<Candidates> chunks(chunks_);
    std::vector<ScanEnd> ends(chunks_);
    for_chunks(chunks_, [&](size_t c) {
      ends[c] = scan_range(values_, begin_of(c), end_of(c), key_min_, limit_, keys_, chunks[c]);
    });
    uint64_t total = 0;
    for (const Candidates& chunk : chunks) total += chunk.positions.size();
    ScanEnd end = *std::ranges::max_element(ends);
    if (end == ScanEnd::kComplete && total > limit_) end = ScanEnd::kOverLimit;
    if (end == ScanEnd::kComplete) join_chunks(chunks, found);
    return end;
  }

  ScanEnd count_and_write(Candidates& found) const {
    std::vector<ScannedBlock> counts(chunks_);
    for_chunks(chunks_, [&](size_t c) {
      counts[c] = count_at_least(values_.subspan(begin_of(c), end_of(c) - begin_of(c)), key_min_);
    });
    std::vector<uint64_t> starts;
    uint64_t total = 0;
    for (const ScannedBlock& count : counts) {
      if (count.largest >= kInfinityKey) return ScanEnd::kNonFinite;
      starts.push_back(total);
      total += count.found;
    }
    if (total > limit_) return ScanEnd::kOverLimit;
    found.positions.resize(total);
    found.keys.resize(keys_ == Keys::kWritten ? total : 0);
    for_chunks(chunks_, [&](size_t c) { write(c, starts[c], found); });
    return ScanEnd::kComplete;
  }

  // Writes a chunk's entries from `start` on. A scan writes past its end, where other threads write: so it has a place
  // of its own.
  void write(size_t chunk, uint64_t start, Candidates& found) const {
    std::array<uint32_t, kScanBlock + kScanSlack> positions;
    std::array<MagnitudeKey, kScanBlock + kScanSlack> keys;
    for (size_t at = begin_of(chunk); at < end_of(chunk); at += kScanBlock) {
      const size_t count = std::min(kScanBlock, end_of(chunk) - at);
      const ScannedBlock block =
          scan_one(values_.subspan(at, count), at, key_min_, keys_, positions.data(), keys.data());
      std::copy_n(positions.data(), block.found, found.positions.data() + start);
      if (keys_ == Keys::kWritten) std::copy_n(keys.data(), block.found, found.keys.data() + start);
      start += block.found;
    }
  }

  std::span<const float> values_;
  MagnitudeKey key_min_;
  uint64_t limit_;
  Keys keys_;
  size_t chunk_entries_;
  size_t chunks_;
};

ScanEnd collect(std::span<const float> values, MagnitudeKey key_min, uint64_t limit, Keys keys, Candidates& found) {
  const size_t threads = scan_threads(values.size());
  if (threads <= 1) return scan_range(values, 0, values.size(), key_min, limit, keys, found);
  return ParallelScan(values, threads, key_min, limit, keys).collect(found);
}

}  // namespace

void join_chunks(std::span<const Candidates> chunks, Candidates& all) {
  std::vector<std::pair<size_t, size_t>> starts;  // of a chunk's positions and keys
  std::pair<size_t, size_t> end{0, 0};
  for (const Candidates& chunk : chunks) {
    starts.push_back(end);
    end.first += chunk.positions.size();
    end.second += chunk.keys.size();
  }
  all.positions.resize(end.first);
  all.keys.resize(end.second);
  const auto copy_chunk = [&](size_t c) {
    std::ranges::copy(chunks[c].positions, all.positions.data() + starts[c].first);
    std::ranges::copy(chunks[c].keys, all.keys.data() + starts[c].second);
  };
  for_chunks(chunks.size(), copy_chunk, kMemoryPass);
}

ScanEnd collect_at_least(std::span<const float> values, MagnitudeKey key_min, uint64_t limit, Candidates& candidates) {
  return collect(values, key_min, limit, Keys::kWritten, candidates);
}

ScanEnd collect_positions(std::span<const float> values, MagnitudeKey key_min, uint64_t limit, IndexBuffer& positions) {
  Candidates found{std::move(positions), {}};
  const ScanEnd end = collect(values, key_min, limit, Keys::kLeftOut, found);
  positions = std::move(found.positions);
  return end;
}

}  // namespace millrace
