#include <gtest/gtest.h>

#include <limits>

#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"
#include "worker/peer/simulation/simulated_allreduce.h"

/// algorithm = auto: the algorithm on which it settles, against all candidates.
namespace millrace::peer::testing {
namespace {

constexpr int kStepsMax = 281;  ///< by which it has settled: eight candidates, 35 steps each if none is left out before

struct Net {
  const char* name;
  TimeNs latency;
  double bytes_per_s;
};

struct Cell {
  uint64_t n;
  double density;
  uint32_t ranks;
  Net net;
};

/// Virtual time of the first step behind those that it takes to settle.
double settled_step(const Cell& cell, AlgorithmId id) {
  SimulationOptions options;
  options.ranks = cell.ranks;
  options.latency = cell.net.latency;
  options.bytes_per_s = cell.net.bytes_per_s;
  AllreduceSettings settings;
  settings.dimension = cell.n;
  settings.k = static_cast<uint64_t>(cell.density * static_cast<double>(cell.n));
  std::vector<SharedStream> own;
  for (uint32_t rank = 0; rank < cell.ranks; ++rank) {
    own.push_back(contribution_of(Spread::kUniform, rank, cell.ranks, cell.n, settings.k, 3));
  }
  auto all = SimulatedAllreduce::make(options, id, settings).value();
  for (int step = 0; step < kStepsMax; ++step) {
    const bool is_settled = all->of_rank(0).is_settled();
    const auto took =
        all->step([&own](uint32_t rank) { return own[rank]; }, [](uint32_t, Reduced, const SharedStream&) {});
    EXPECT_TRUE(took.has_value()) << took.error().message;
    if (is_settled) return static_cast<double>(took.value_or(0));
  }
  ADD_FAILURE() << "not settled after " << kStepsMax << " steps";
  return std::numeric_limits<double>::infinity();
}

TEST(Automatic, SettlesWithinATenthOfTheBest) {
  const Net nets[] = {{"10 Gbit/s, 10 us", 10 * kNsPerUs, 1.25e9},
                      {"1 Gbit/s, 50 us", 50 * kNsPerUs, 1.25e8},
                      {"100 Mbit/s, 5 ms", 5 * kNsPerMs, 1.25e7}};
  for (const Net& net : nets) {
    for (const uint64_t n : {2'000u, 20'000u}) {
      for (const double density : {0.001, 0.02, 0.4}) {
        for (const uint32_t ranks : {2u, 5u, 16u}) {
          const Cell cell{n, density, ranks, net};
          SCOPED_TRACE(std::string(net.name) + ", n " + std::to_string(n) + ", density " + std::to_string(density) +
                       ", " + std::to_string(ranks) + " ranks");
          double best = std::numeric_limits<double>::infinity();
          for (const AlgorithmInfo& info : algorithms()) {
            if (info.result != ResultKind::kExactSum || info.chooses) continue;
            best = std::min(best, settled_step(cell, info.id));
          }
          EXPECT_LE(settled_step(cell, AlgorithmId::kAuto), 1.1 * best);
        }
      }
    }
  }
}

TEST(Automatic, TheChoiceReportsTheTimesOfTheCandidates) {
  AllreduceSettings settings;
  settings.dimension = 100;
  const auto made = make_allreduce(AlgorithmId::kAuto, settings).value();
  EXPECT_FALSE(made->is_settled());
  EXPECT_EQ(made->choice(), "");
  Pump pump(1, 1);
  for (int step = 0; !made->is_settled(); ++step) {
    ASSERT_LT(step, kStepsMax);
    const SharedStream own = contribution_of(Spread::kUniform, 0, 1, 100, 10, 3);
    ASSERT_TRUE(pump.start(0, {"auto",
                               [&](Channel& channel) -> Task<Status> {
                                 auto reduced = co_await made->run(channel, own);
                                 if (!reduced) co_return std::unexpected(reduced.error());
                                 co_return Status{};
                               }})
                    .has_value());
  }
  EXPECT_TRUE(made->choice().contains(" ms; ")) << made->choice();
}

}  // namespace
}  // namespace millrace::peer::testing
