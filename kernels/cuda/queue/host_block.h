#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/queue/block_kernel.h"

namespace millrace::cuda {

/// One thread of a block.
struct HostThread {
  uint32_t rank;
  uint32_t lane() const { return rank % kWarp; }
  uint32_t warp() const { return rank / kWarp; }
};

/// Remembers which threads of a block used a word of shared memory since the last barrier, and reports races.
class SharedWatch {
 public:
  explicit SharedWatch(size_t words) : words_(words) {}

  void barrier() { ++epoch_; }
  void read(uint32_t thread, size_t word);
  void write(uint32_t thread, size_t word);
  void add(uint32_t thread, size_t word);
  /// Returns the first race of the block, or an empty text.
  const std::string& race() const { return race_; }

 private:
  static constexpr uint32_t kSeveral = ~uint32_t{0};
  struct Use {
    uint64_t epoch = 0;
    uint32_t thread = 0;  ///< kSeveral: more than one
  };
  struct Word {
    Use reads, writes, adds;
    bool written = false;
  };

  bool others(const Use& use, uint32_t thread) const { return use.epoch == epoch_ && use.thread != thread; }
  void note(Use& use, uint32_t thread) const;
  void report(const char* what, uint32_t thread, size_t word, uint32_t other);
  Word* word_at(const char* what, uint32_t thread, size_t word);

  uint64_t epoch_ = 1;
  std::vector<Word> words_;
  std::string race_;
};

/// The order in which a host runner takes the threads of a phase and the blocks of a launch.
struct HostOrder {
  uint32_t stride = 1;  ///< odd
  uint32_t first = 0;

  uint32_t at(uint32_t i, uint32_t count) const {
    // Threads are a power of two; blocks may be any number: those past the end are skipped by the caller.
    return (first + i * stride) & (count - 1);
  }
};

/// A block of threads on the host: a phase is a loop over them, in any order.
template <uint32_t kThreads>
class HostBlock {
 public:
  template <class T>
  class Own {
   public:
    Own() : values_(kThreads) {}
    T& operator[](HostThread t) { return values_[t.rank].value; }
    const T& operator[](HostThread t) const { return values_[t.rank].value; }

   private:
    struct Cell {  // no vector<bool>
      T value{};
    };
    std::vector<Cell> values_;
  };

  template <class T>
  class Shared {
   public:
    Shared(HostBlock& block, uint32_t first) : block_(&block), first_(first) {}
    T load(HostThread t, uint32_t i) const {
      each_word(i, [&](size_t word) { block_->watch_.read(t.rank, word); });
      return value(i);
    }
    void store(HostThread t, uint32_t i, T value) const {
      each_word(i, [&](size_t word) { block_->watch_.write(t.rank, word); });
      set(i, value);
    }
    T add(HostThread t, uint32_t i, T more) const {
      each_word(i, [&](size_t word) { block_->watch_.add(t.rank, word); });
      const T before = value(i);
      set(i, before + more);
      return before;
    }
    /// All threads read it.
    T uniform(uint32_t i) const {
      for (uint32_t rank = 0; rank < kThreads; rank += kThreads - 1) load({rank}, i);
      return value(i);
    }

   private:
    static constexpr uint32_t kWords = sizeof(T) / sizeof(uint32_t);
    template <class F>
    void each_word(uint32_t i, const F& each) const {
      for (uint32_t w = 0; w < kWords; ++w) each(size_t{first_} + size_t{i} * kWords + w);
    }
    uint32_t* at(uint32_t i) const { return block_->memory_.data() + first_ + size_t{i} * kWords; }
    bool inside(uint32_t i) const { return first_ + (size_t{i} + 1) * kWords <= block_->memory_.size(); }
    T value(uint32_t i) const {
      T result{};
      if (inside(i)) std::memcpy(static_cast<void*>(&result), at(i), sizeof(T));
      return result;
    }
    void set(uint32_t i, T value) const {
      if (inside(i)) std::memcpy(at(i), &value, sizeof(T));
    }

    HostBlock* block_;
    uint32_t first_;
  };

  HostBlock(uint32_t index, uint32_t blocks, size_t shared_words, HostOrder order)
      : index_(index), blocks_(blocks), order_(order), memory_(shared_words, 0xDEADBEEFu), watch_(shared_words) {}

  uint32_t index() const { return index_; }
  uint32_t blocks() const { return blocks_; }
  const std::string& race() const { return watch_.race(); }
  template <class T>
  Own<T> own() {
    return {};
  }
  template <class T>
  Shared<T> shared(uint32_t first_word) {
    MILLRACE_CHECK(first_word * sizeof(uint32_t) % alignof(T) == 0, first_word);
    return {*this, first_word};
  }

  template <class F>
  void step(F&& each) {
    for (uint32_t i = 0; i < kThreads; ++i) each(HostThread{order_.at(i, kThreads)});
  }
  template <class F>
  void phase(F&& each) {
    step(each);
    watch_.barrier();
  }

  template <class F>
  Own<uint32_t> ballot(F&& each) {
    std::array<uint32_t, kThreads / kWarp> bits{};
    step([&](HostThread t) { bits[t.warp()] |= (each(t) ? 1u : 0u) << t.lane(); });
    return of_warps(bits);
  }
  template <class F>
  Own<uint32_t> warp_max(F&& each) {
    std::array<uint32_t, kThreads / kWarp> largest{};
    step([&](HostThread t) { largest[t.warp()] = std::max<uint32_t>(largest[t.warp()], each(t)); });
    return of_warps(largest);
  }
  Own<uint32_t> warp_scan(Own<uint32_t>& values) {
    std::array<uint32_t, kThreads / kWarp> sums{};
    for (uint32_t rank = 0; rank < kThreads; ++rank) {
      const uint32_t value = values[HostThread{rank}];
      values[HostThread{rank}] = sums[rank / kWarp];
      sums[rank / kWarp] += value;
    }
    return of_warps(sums);
  }
  template <class F>
  uint32_t count(F&& each) {
    uint32_t found = 0;
    phase([&](HostThread t) { found += each(t) ? 1 : 0; });
    return found;
  }
  template <class T>
  T scan(Own<T>& values) {
    T sum = 0;
    for (uint32_t rank = 0; rank < kThreads; ++rank) {
      const T value = values[HostThread{rank}];
      values[HostThread{rank}] = sum;
      sum += value;
    }
    watch_.barrier();
    return sum;
  }

  template <class T>
  T uniform(const Own<T>& own) {
    for (uint32_t rank = 1; rank < kThreads; ++rank) {
      MILLRACE_CHECK(own[HostThread{rank}] == own[HostThread{0}], rank);
    }
    return own[HostThread{0}];
  }

  template <class T>
  T add_global(T* at, std::type_identity_t<T> value) {
    const T before = *at;
    *at += value;
    return before;
  }
  void or_global(uint32_t* at, uint32_t bits) { *at |= bits; }
  void max_global(uint32_t* at, uint32_t value) { *at = std::max(*at, value); }
  void fence() {}
  template <class T>
  T fresh(const T* at) {
    return *at;
  }

  Float4 load4(const float* at) {
    Float4 loaded;
    std::memcpy(&loaded, at, sizeof(loaded));
    return loaded;
  }
  void store4(float* at, const Float4& from) { std::memcpy(at, &from, sizeof(from)); }
  void stream4(float* at, const Float4& from) { store4(at, from); }
  void store_halves(uint16_t* at, uint32_t low, uint32_t high) {
    std::memcpy(at, &low, sizeof(low));
    std::memcpy(at + 2, &high, sizeof(high));
  }
  template <uint32_t kBytes>
  void store_bytes(uint8_t* at, uint32_t bits) {
    std::memcpy(at, &bits, kBytes);
  }

 private:
  Own<uint32_t> of_warps(const std::array<uint32_t, kThreads / kWarp>& values) {
    Own<uint32_t> own;
    for (uint32_t rank = 0; rank < kThreads; ++rank) own[HostThread{rank}] = values[rank / kWarp];
    return own;
  }

  uint32_t index_;
  uint32_t blocks_;
  HostOrder order_;
  std::vector<uint32_t> memory_;
  SharedWatch watch_;
};

}  // namespace millrace::cuda
