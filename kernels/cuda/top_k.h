#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/base/result.h"
#include "kernels/cuda/segment_kernels.h"
#include "kernels/magnitude/magnitude_sample.h"
#include "kernels/magnitude/top_k_search.h"
#include "kernels/stream/stream.h"

/// Selections over an array that lies where a queue's kernels run: DeviceQueue on a card, HostQueue on the host.
/// `values` are in that memory; they may be at any multiple of 4 bytes.
namespace millrace::cuda {

/// An array of T in a queue's memory.
template <class Queue, class T>
using MemoryOf = decltype(std::declval<Queue&>().template allocate<T>(0));

/// Selected positions, increasing, in the queue's memory.
template <class Queue>
struct Positions {
  MemoryOf<Queue, uint32_t> positions;
  uint64_t count = 0;
};

inline std::unexpected<Error> non_finite_values() {
  return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
}

/// Returns 1 where 16 bytes can be loaded at once.
inline uint32_t is_aligned16(const void* at) { return std::bit_cast<uintptr_t>(at) % 16 == 0 ? 1 : 0; }

/// Candidates of one selection, and the memory that its kernels use.
template <class Queue>
class CandidateMemory {
 public:
  CandidateMemory(Queue& queue, uint64_t capacity, uint64_t segments)
      : capacity_(capacity),
        segments_(segments),
        entries_(queue.template allocate<uint32_t>(2 * capacity)),
        table_(queue.template allocate<uint32_t>(4 * segments)),
        of_blocks_(queue.template allocate<uint64_t>(2 * blocks())) {}

  CandidateTable table() const {
    return {entries_.data(), entries_.data() + capacity_, capacity_, table_.data(), table_.data() + segments_};
  }
  SegmentTable segment_table() const {
    return {table(),
            static_cast<uint32_t>(segments_),
            table_.data() + 2 * segments_,
            table_.data() + 3 * segments_,
            of_blocks_.data(),
            of_blocks_.data() + blocks()};
  }
  uint64_t blocks() const { return (segments_ + kSegmentsOfBlock - 1) / kSegmentsOfBlock; }

 private:
  uint64_t capacity_;
  uint64_t segments_;
  MemoryOf<Queue, uint32_t> entries_;
  MemoryOf<Queue, uint32_t> table_;
  MemoryOf<Queue, uint64_t> of_blocks_;
};

/// Writes the positions of the candidates above the state's cut, and of its ties.
template <class Queue>
void emit(Queue& queue, const CandidateMemory<Queue>& candidates, Zeros zeros, SelectState* state, uint64_t limit,
          uint32_t* positions) {
  const SegmentTable table = candidates.segment_table();
  const uint32_t skips_zeros = zeros == Zeros::kSkipped ? 1 : 0;
  queue.launch(CountSegments{table, skips_zeros, state}, candidates.blocks());
  queue.launch(EmitSegments{table, skips_zeros, state, limit, positions}, candidates.blocks());
}

template <class Queue>
Result<SelectState> state_of(Queue& queue, const SelectState* state) {
  SelectState result;
  queue.download(std::span(&result, 1), state);
  if (auto done = queue.finish(); !done) return std::unexpected(done.error());
  return result;
}

/// Finds the key of state->rank among a source's keys: a kernel for each of the first `digits` digits.
template <class Queue, class Source>
void find_key(Queue& queue, const Source& source, uint64_t count, uint32_t digits, uint64_t* bins, SelectState* state) {
  using Kernel = CountDigit<Source>;
  // Each block adds its bins to those of all: more blocks than can run at once would add more than they count.
  const uint64_t enough = (count + Kernel::kThreads * Kernel::kLoads - 1) / (Kernel::kThreads * Kernel::kLoads);
  const uint64_t blocks = std::clamp<uint64_t>(enough, 1, queue.filling_blocks(Kernel::kThreads) / 2 + 1);
  for (uint32_t digit = 0; digit < digits; ++digit) {
    queue.launch(CountDigit<Source>{source, shift_of_digit(digit), bins, state}, blocks);
  }
}

/// Looks for keys in a sample of the values.
template <class Queue>
void sample_guess(Queue& queue, const float* values, uint64_t n, uint64_t samples, uint64_t* bins, SelectState* guess,
                  uint32_t* keys) {
  queue.launch(SampleKeys{values, samples, (n << 16) / samples, keys}, (samples + 255) / 256);
  // Two digits of three: the missing digit only lowers the guess.
  find_key(queue, KeySource{keys, &guess->found, samples}, samples, 2, bins, guess);
}

/// Enqueues the largest key of an array; *largest is 0 before.
template <class Queue>
void enqueue_max_key(Queue& queue, const float* values, uint64_t n, uint32_t* largest) {
  queue.launch(MaxKey{values, n, is_aligned16(values), largest},
               (n + MaxKey::kBlockEntries - 1) / MaxKey::kBlockEntries);
}

inline uint64_t sample_size(uint64_t n) { return std::clamp<uint64_t>(n / 256, 256, 65536); }
inline uint64_t tiles_of(uint64_t n) { return (n + kTile - 1) / kTile; }

template <class Queue>
class TopK {
 public:
  TopK(Queue& queue, const float* values, uint64_t n, uint64_t k, Zeros zeros)
      : queue_(queue), values_(values), n_(n), k_(k), zeros_(zeros) {}

  Result<Positions<Queue>> select() {
    if (n_ > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
    if (k_ == 0 || (k_ == n_ && zeros_ == Zeros::kSelected)) return take_all();
    if (auto found = by_sample(); !found || found->count != kNone) return found;
    return by_radix();
  }

  /// Three passes over the values for the cut, and one for the positions, for any values. REQUIRES k of at least 1.
  Result<Positions<Queue>> by_radix() {
    auto state = queue_.template allocate<SelectState>(2);
    auto bins = queue_.template allocate<uint64_t>(kBins);
    queue_.launch(BeginSelection{{.rank = k_}, {}, state.data(), bins.data()}, 1);
    find_key(queue_, ValueSource{values_, n_}, n_, 3, bins.data(), state.data());
    const auto cut = state_of(queue_, state.data());
    if (!cut) return std::unexpected(cut.error());
    if (cut->non_finite != 0) return non_finite_values();
    const bool only_above = zeros_ == Zeros::kSkipped && cut->decided == 0;
    const uint64_t capacity = k_ - cut->rank + (only_above ? 0 : cut->in_digit);
    CandidateMemory<Queue> candidates(queue_, capacity, tiles_of(n_));
    queue_.launch(Collect<MagnitudeTest>{test_from(state.data(), only_above ? 1 : 0), candidates.table(), state.data()},
                  tiles_of(n_));
    Positions<Queue> result{queue_.template allocate<uint32_t>(k_), 0};
    emit(queue_, candidates, zeros_, state.data(), k_, result.positions.data());
    const auto end = state_of(queue_, state.data());
    if (!end) return std::unexpected(end.error());
    result.count = end->total;
    return result;
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};

  Result<Positions<Queue>> take_all() {
    auto largest = queue_.template allocate<uint32_t>(1);
    queue_.clear(largest.data(), sizeof(uint32_t));
    enqueue_max_key(queue_, values_, n_, largest.data());
    Positions<Queue> result{queue_.template allocate<uint32_t>(k_), k_};
    queue_.launch(CountUp{result.positions.data(), k_}, blocks_over(k_, CountUp::kThreads));
    uint32_t key = 0;
    queue_.download(std::span(&key, 1), largest.data());
    if (auto done = queue_.finish(); !done) return std::unexpected(done.error());
    if (key >= kKeyInfinity) return non_finite_values();
    return result;
  }

  uint64_t blocks_over(uint64_t count, uint32_t threads) const {
    return std::min<uint64_t>((count + threads - 1) / threads, queue_.filling_blocks(threads));
  }

  MagnitudeTest test_from(const SelectState* guess, uint32_t key_least) const {
    return {values_, n_, guess, key_least, is_aligned16(values_)};
  }

  static Positions<Queue> none() {
    Positions<Queue> positions;
    positions.count = kNone;
    return positions;
  }

  /// One pass over the values, from a guess at the cut. kNone: the guess was no good.
  Result<Positions<Queue>> by_sample() {
    const uint64_t samples = n_ < kSampleFrom ? 0 : sample_size(n_);
    uint64_t sample_rank = 0;
    uint64_t capacity = n_;
    if (samples != 0) {
      const double rank = safe_sample_rank(k_, n_, samples);
      const double of_sample = static_cast<double>(n_) / static_cast<double>(samples);
      const uint64_t half = n_ / 2;
      if (rank >= static_cast<double>(samples) || rank * of_sample > static_cast<double>(half)) return none();
      sample_rank = static_cast<uint64_t>(rank);
      // Room for four standard deviations of the sample.
      const double most = rank + std::max(rank / 4, 4 * std::sqrt(rank));
      capacity = std::min(n_, static_cast<uint64_t>(most * of_sample) + kTile);
    }
    auto states = queue_.template allocate<SelectState>(2);
    auto bins = queue_.template allocate<uint64_t>(kBins);
    auto sample = queue_.template allocate<uint32_t>(samples);
    SelectState* const guess = states.data();
    SelectState* const state = states.data() + 1;
    queue_.launch(BeginSelection{{.found = samples, .rank = sample_rank}, {.rank = k_}, states.data(), bins.data()}, 1);
    if (samples != 0) sample_guess(queue_, values_, n_, samples, bins.data(), guess, sample.data());
    CandidateMemory<Queue> candidates(queue_, capacity, tiles_of(n_));
    queue_.launch(Collect<MagnitudeTest>{test_from(guess, samples == 0 ? 0 : 1), candidates.table(), state},
                  tiles_of(n_));
    find_key(queue_, KeySource{candidates.table().keys, &state->found, capacity}, capacity, 3, bins.data(), state);
    Positions<Queue> result{queue_.template allocate<uint32_t>(k_), kNone};
    emit(queue_, candidates, zeros_, state, k_, result.positions.data());
    const auto end = state_of(queue_, state);
    if (!end) return std::unexpected(end.error());
    if (end->non_finite != 0) return non_finite_values();
    if (end->found >= k_ && end->found <= capacity) result.count = end->total;
    return result;
  }

  Queue& queue_;
  const float* values_;
  uint64_t n_;
  uint64_t k_;
  Zeros zeros_;
};

/// Selects the k entries of largest magnitude, exactly.
///
/// values   [n] f32.
/// Order    increasing positions; ties: lower index first. The same positions as select_top_k(), with zeros skipped as
///          select_top_k_nonzero(). Trimmed top-k and radix select give the same.
/// Cost     one pass over the values, and the candidates; scratch of 8 bytes a candidate, about 1.2 k of them. Values
///          that
///          mislead the sample: four passes, and 8 bytes for each entry at or above the cut. Waits for the queue.
/// Errors   k > n: invalid_argument, unless zeros are skipped. NaN or infinity: non_finite.
/// Source   [RedSync19, 2.1]; radixSelect: [Alabi12].
template <class Queue>
Result<Positions<Queue>> top_k(Queue& queue, const float* values, uint64_t n, uint64_t k, Zeros zeros) {
  if (k > n && zeros == Zeros::kSelected) {
    return fail(ErrorCode::kInvalidArgument, "k is larger than the number of values");
  }
  return TopK<Queue>(queue, values, n, std::min(k, n), zeros).select();
}

/// Selects the k entries of largest magnitude as selection `radix` does: by radix select over all values.
///
/// Cost     four passes over the values. Waits for the queue.
/// Errors   NaN or infinity: non_finite.
/// Source   [RedSync19, 2.1]; radixSelect: [Alabi12].
template <class Queue>
Result<Positions<Queue>> radix_top_k(Queue& queue, const float* values, uint64_t n, uint64_t k) {
  k = std::min(k, n);
  if (k == 0) return Positions<Queue>{queue.template allocate<uint32_t>(0), 0};
  if (n > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  return TopK<Queue>(queue, values, n, k, Zeros::kSkipped).by_radix();
}

/// Selected positions, and how many entries the test accepted. Of more than the capacity none is selected.
template <class Queue>
struct Accepted {
  Positions<Queue> selected;
  uint64_t found = 0;
};

/// Selects the entries of [0, n) that a test accepts, the first `limit` of them, in one pass. Waits for the queue.
///
/// key       the cut of the state that test_of(state) is called with.
/// capacity  the entries that may be accepted.
/// Errors    NaN or infinity among the accepted: non_finite.
template <class Queue, class TestOf>
Result<Accepted<Queue>> select_accepted(Queue& queue, uint64_t n, MagnitudeKey key, uint64_t capacity, uint64_t limit,
                                        const TestOf& test_of) {
  using Test = decltype(test_of(nullptr));
  auto states = queue.template allocate<SelectState>(2);
  SelectState* const state = states.data() + 1;
  queue.launch(BeginSelection{{.decided = key}, {}, states.data(), nullptr}, 1);
  CandidateMemory<Queue> candidates(queue, capacity, tiles_of(n));
  queue.launch(Collect<Test>{test_of(states.data()), candidates.table(), state}, tiles_of(n));
  limit = std::min(limit, capacity);
  Accepted<Queue> result{{queue.template allocate<uint32_t>(limit), 0}, 0};
  emit(queue, candidates, Zeros::kSkipped, state, limit, result.selected.positions.data());
  const auto end = state_of(queue, state);
  if (!end) return std::unexpected(end.error());
  result.found = end->found;
  if (end->found > capacity) return result;
  if (end->non_finite != 0) return non_finite_values();
  result.selected.count = std::min(end->total, limit);
  return result;
}

/// Does the same for any number of them. expected: about how many there are; more cost a second pass.
template <class Queue, class TestOf>
Result<Positions<Queue>> select_all(Queue& queue, uint64_t n, MagnitudeKey key, uint64_t expected, uint64_t limit,
                                    const TestOf& test_of) {
  uint64_t capacity = std::min(n, expected + expected / 8 + kTile);
  while (true) {
    auto accepted = select_accepted(queue, n, key, capacity, limit, test_of);
    if (!accepted) return std::unexpected(accepted.error());
    if (accepted->found <= capacity) return std::move(accepted->selected);
    capacity = accepted->found;
  }
}

/// Selects the entries that reach a key from 1 up, unless there are more than `count_max`.
///
/// Cost    a pass over the values. Waits for the queue.
/// Errors  NaN or infinity anywhere, and no more than count_max entries: non_finite.
template <class Queue>
Result<Accepted<Queue>> reach(Queue& queue, const float* values, uint64_t n, MagnitudeKey key, uint64_t count_max) {
  return select_accepted(queue, n, key, std::min(n, count_max), n, [&](const SelectState* guess) {
    return MagnitudeTest{values, n, guess, 1, is_aligned16(values)};
  });
}

/// Selects the entries with |x| >= threshold, at most `count_max` of them (the first ones), as select_threshold().
///
/// expected  about how many there are: more cost a second pass.
/// Cost      a pass over the values. Waits for the queue.
/// Errors    NaN or infinity anywhere: non_finite. threshold not positive, or NaN: invalid_argument.
template <class Queue>
Result<Positions<Queue>> threshold(Queue& queue, const float* values, uint64_t n, float threshold, uint64_t count_max,
                                   uint64_t expected) {
  if (!(threshold > 0)) return fail(ErrorCode::kInvalidArgument, "a threshold is above 0");
  if (n > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  const uint32_t key = std::min(magnitude_key(threshold), kInfinityKey);
  return select_all(queue, n, key, expected, count_max,
                    [&](const SelectState* guess) { return MagnitudeTest{values, n, guess, 1, is_aligned16(values)}; });
}

}  // namespace millrace::cuda
