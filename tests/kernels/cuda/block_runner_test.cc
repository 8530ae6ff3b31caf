#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/queue/host_queue.h"

namespace millrace::cuda {
namespace {

/// Each thread writes a word and reads its neighbour's: a race, unless a barrier is between.
struct ReadNeighbour {
  static constexpr uint32_t kThreads = 64;
  static constexpr uint32_t kSharedWords = kThreads;
  bool has_barrier;
  std::vector<uint32_t>* read;

  template <class Block>
  void operator()(Block& block) const {
    auto shared = block.template shared<uint32_t>(0);
    const auto write = [&](auto t) { shared.store(t, t.rank, t.rank); };
    if (has_barrier) {
      block.phase(write);
    } else {
      block.step(write);
    }
    block.phase([&](auto t) { (*read)[t.rank] = shared.load(t, (t.rank + 1) % kThreads); });
  }
};

/// All threads use one word in a way.
struct UseOneWord {
  static constexpr uint32_t kThreads = 32;
  static constexpr uint32_t kSharedWords = 2;
  enum class Way { kAdd, kAddAndRead, kOverwrite, kReadThenWrite, kReadUninitialized, kPastTheEnd } way;

  template <class Block>
  void operator()(Block& block) const {
    auto shared = block.template shared<uint32_t>(0);
    block.phase([&](auto t) {
      if (t.rank == 0 && way != Way::kReadUninitialized) shared.store(t, 0, 1);
    });
    block.phase([&](auto t) {
      switch (way) {
        case Way::kAdd: shared.add(t, 0, 1); break;
        case Way::kAddAndRead: t.rank == 7 ? shared.load(t, 0) : shared.add(t, 0, 1); break;
        case Way::kOverwrite: shared.store(t, 0, 5); break;
        case Way::kReadThenWrite:
          shared.load(t, 0);
          if (t.rank == 3) shared.store(t, 0, 5);
          break;
        case Way::kReadUninitialized: shared.load(t, 0); break;
        case Way::kPastTheEnd: shared.load(t, 2); break;
      }
    });
  }
};

/// Counts the runs of each block.
struct MarkBlock {
  static constexpr uint32_t kThreads = 32;
  static constexpr uint32_t kSharedWords = 0;
  std::vector<uint32_t>* marks;
  void operator()(HostBlock<kThreads>& block) const { ++(*marks)[block.index()]; }
};

std::string fault_of(UseOneWord::Way way, HostOrder threads) {
  HostQueue queue(threads, {});
  queue.launch(UseOneWord{way}, 1);
  const Status end = queue.finish();
  return end ? "" : end.error().message;
}

TEST(BlockRunner, ReadingANeighbourWithoutABarrierIsARace) {
  for (const HostOrder order : {HostOrder{}, HostOrder{5, 17}, HostOrder{63, 63}}) {
    std::vector<uint32_t> read(ReadNeighbour::kThreads);
    HostQueue queue(order, {});
    queue.launch(ReadNeighbour{true, &read}, 1);
    EXPECT_TRUE(queue.finish().has_value());
    for (uint32_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i], (i + 1) % read.size());
    queue.launch(ReadNeighbour{false, &read}, 1);
    const Status end = queue.finish();
    ASSERT_FALSE(end.has_value());
    EXPECT_NE(end.error().message.find("without a barrier between"), std::string::npos) << end.error().message;
  }
}

TEST(BlockRunner, AtomicAdditionsAloneAreNoRace) {
  for (const HostOrder order : {HostOrder{}, HostOrder{3, 9}}) {
    EXPECT_EQ(fault_of(UseOneWord::Way::kAdd, order), "");
    EXPECT_NE(fault_of(UseOneWord::Way::kAddAndRead, order), "");
    EXPECT_NE(fault_of(UseOneWord::Way::kOverwrite, order), "");
    EXPECT_NE(fault_of(UseOneWord::Way::kReadThenWrite, order), "");
    EXPECT_NE(fault_of(UseOneWord::Way::kReadUninitialized, order), "");
    EXPECT_NE(fault_of(UseOneWord::Way::kPastTheEnd, order), "");
  }
}

TEST(BlockRunner, EveryBlockRunsOnceInAnyOrder) {
  for (const HostOrder order : {HostOrder{}, HostOrder{7, 2}}) {
    for (const uint32_t blocks : {0u, 1u, 5u, 64u, 100u}) {
      std::vector<uint32_t> marks(blocks);
      HostQueue queue({}, order);
      queue.launch(MarkBlock{&marks}, blocks);
      EXPECT_EQ(marks, std::vector<uint32_t>(blocks, 1));
    }
  }
}

}  // namespace
}  // namespace millrace::cuda
