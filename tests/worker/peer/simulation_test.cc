#include "worker/peer/simulation/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/oracles/stream_oracle.h"
#include "tests/worker/peer/cases.h"
#include "worker/peer/collectives/contribution.h"
#include "worker/peer/simulation/simulated_allreduce.h"

namespace millrace::peer::testing {
namespace {

constexpr TimeNs kLatency = 1'000;
constexpr double kLinkRate = 1e9;  // a byte a nanosecond

SimulationOptions simulation_options_of(uint32_t ranks) {
  SimulationOptions options;
  options.ranks = ranks;
  options.latency = kLatency;
  options.bytes_per_s = kLinkRate;
  return options;
}

/// Returns the transfer time of a message with a body of `body` bytes.
constexpr TimeNs transfer(uint64_t body) { return kLatency + static_cast<TimeNs>(kMessageHeaderBytes + body); }

Packet simulation_body_of(size_t bytes) { return {BodyForm::kNumbers, SharedBytes::from(ByteBuffer(bytes))}; }

using Body = Task<Status> (*)(Channel&);

void start_all(Simulation& simulation, Body body, TimeNs at = 0) {
  for (uint32_t rank = 0; rank < simulation.size(); ++rank) {
    simulation.start(rank, at, [body] { return Collective{"test", body}; });
  }
}

TimeNs end_of(const Simulation& simulation, uint32_t rank) {
  const auto& ended = simulation.ended(rank).back();
  EXPECT_TRUE(ended.has_value() && ended->status.has_value()) << "rank " << rank;
  return ended ? ended->at : -1;
}

TEST(Earliest, GivesTheEarliestAndOfEqualsTheLowest) {
  for (const uint32_t slots : {1u, 2u, 3u, 7u, 64u, 100u}) {
    RandomSequence draws(RandomKey::from(slots));
    Earliest earliest(slots);
    std::vector<TimeNs> times(slots, kNever);
    for (int turn = 0; turn < 2'000; ++turn) {
      const auto slot = static_cast<uint32_t>(draws.next_below(slots));
      times[slot] = draws.next_below(8) == 0 ? kNever : static_cast<TimeNs>(draws.next_below(50));
      earliest.set(slot, times[slot]);
      const auto least = std::ranges::min_element(times);
      ASSERT_EQ(earliest.time(), *least);
      ASSERT_EQ(earliest.slot(), static_cast<uint32_t>(least - times.begin()));
    }
  }
}

TEST(Earliest, ManyAtOnceAreAsOneAfterTheOther) {
  for (const uint32_t slots : {1u, 2u, 3u, 7u, 64u, 100u}) {
    RandomSequence draws(RandomKey::from(slots));
    Earliest earliest(slots);
    std::vector<TimeNs> times(slots, kNever);
    std::vector<uint32_t> found;
    for (int turn = 0; turn < 200; ++turn) {
      for (uint32_t slot = 0; slot < slots; ++slot) {
        times[slot] = draws.next_below(8) == 0 ? kNever : static_cast<TimeNs>(draws.next_below(50));
        earliest.put(slot, times[slot]);
      }
      earliest.rebuild();
      const auto least = std::ranges::min_element(times);
      ASSERT_EQ(earliest.slot(), static_cast<uint32_t>(least - times.begin()));
      const auto end = static_cast<TimeNs>(draws.next_below(60));
      std::vector<uint32_t> expected;
      for (uint32_t slot = 0; slot < slots; ++slot) {
        if (times[slot] < end) expected.push_back(slot);
      }
      earliest.before(end, found);
      ASSERT_EQ(found, expected) << slots << " slots, before " << end;
    }
  }
}

/// Two ranks send each other 100 bytes at once: both ports work in both directions.
Task<Status> exchange_simulation(Channel& channel) {
  channel.send(1 - channel.rank(), 1, simulation_body_of(100));
  co_await channel.receive(1 - channel.rank(), 1);
  co_return Status{};
}

TEST(Simulation, AMessageTakesItsLatencyAndItsBytes) {
  Simulation simulation(simulation_options_of(2));
  start_all(simulation, exchange_simulation, 500);
  ASSERT_TRUE(simulation.run().has_value());
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(end_of(simulation, rank), 500 + transfer(100));
    EXPECT_EQ(simulation.counts(rank).traffic.messages_sent, 1u);
    EXPECT_EQ(simulation.counts(rank).traffic.bytes_sent, 132u);
    EXPECT_EQ(simulation.counts(rank).body_bytes_received, 100u);
  }
  EXPECT_EQ(simulation.messages(), 2u);
}

constexpr size_t kLongBody = 8192;

/// All but rank 0 send it a long body: ranks 1 and 2 the same, rank 3 another.
Task<Status> send_long(Channel& channel) {
  if (channel.rank() != 0) {
    ByteBuffer bytes(kLongBody);
    std::ranges::fill(bytes, channel.rank() == 3 ? uint8_t{2} : uint8_t{1});
    channel.send(0, 1, {BodyForm::kNumbers, SharedBytes::from(std::move(bytes))});
    co_return Status{};
  }
  std::vector<Packet> packets;
  for (uint32_t from = 1; from < channel.size(); ++from) packets.push_back(co_await channel.receive(from, 1));
  EXPECT_EQ(packets[0].body.bytes.data(), packets[1].body.bytes.data());
  EXPECT_NE(packets[0].body.bytes.data(), packets[2].body.bytes.data());
  for (size_t i = 0; i < packets.size(); ++i) {
    const ByteSpan bytes = packets[i].body.bytes;
    EXPECT_EQ(std::ranges::count(bytes, i == 2 ? uint8_t{2} : uint8_t{1}), ptrdiff_t{kLongBody});
  }
  co_return Status{};
}

TEST(Simulation, BodiesOfTheSameBytesAreKeptOnce) {
  Simulation simulation(simulation_options_of(4));
  start_all(simulation, send_long);
  ASSERT_TRUE(simulation.run().has_value());
  EXPECT_EQ(end_of(simulation, 0), 3 * transfer(kLongBody));
  EXPECT_EQ(simulation.counts(0).body_bytes_received, 3 * kLongBody);
}

TEST(Simulation, PropagationOccupiesNoPort) {
  SimulationOptions options = simulation_options_of(2);
  options.propagation = 7'000;
  Simulation simulation(options);
  start_all(simulation, exchange_simulation);
  ASSERT_TRUE(simulation.run().has_value());
  EXPECT_EQ(end_of(simulation, 0), 7'000 + transfer(100));
}

/// All send to rank 0, which answers when it has everything.
Task<Status> incast(Channel& channel) {
  if (channel.rank() != 0) {
    channel.send(0, 1, simulation_body_of(400));
    co_await channel.receive(0, 2);
    co_return Status{};
  }
  for (uint32_t from = channel.size() - 1; from > 0; --from) co_await channel.receive(from, 1);
  for (uint32_t to = 1; to < channel.size(); ++to) channel.send(to, 2, {});
  co_return Status{};
}

TEST(Simulation, APortReceivesAndSendsOneMessageAtATime) {
  Simulation simulation(simulation_options_of(4));
  start_all(simulation, incast);
  ASSERT_TRUE(simulation.run().has_value());
  EXPECT_EQ(end_of(simulation, 0), 3 * transfer(400));
  for (uint32_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(end_of(simulation, rank), 3 * transfer(400) + rank * transfer(0));
  }
}

TEST(Simulation, ASlowLinkDelaysOnlyItsMessages) {
  SimulationOptions options = simulation_options_of(4);
  options.link_bytes_per_s = [](uint32_t from, uint32_t) { return from == 3 ? kLinkRate / 10 : kLinkRate; };
  Simulation simulation(options);
  start_all(simulation, incast);
  ASSERT_TRUE(simulation.run().has_value());
  EXPECT_EQ(end_of(simulation, 0), 2 * transfer(400) + kLatency + 10 * 432);
}

/// Sends before and after it has worked.
Task<Status> works(Channel& channel) {
  if (channel.rank() == 0) {
    channel.send(1, 1, {});
    channel.charge(50'000);
    channel.send(1, 2, {});
    co_return Status{};
  }
  co_await channel.receive(0, 1);
  channel.charge(100'000);  // and a message that arrives meanwhile waits
  co_await channel.receive(0, 2);
  co_return Status{};
}

TEST(Simulation, WorkDelaysLaterEvents) {
  Simulation simulation(simulation_options_of(2));
  start_all(simulation, works);
  ASSERT_TRUE(simulation.run().has_value());
  EXPECT_EQ(end_of(simulation, 0), 50'000);
  EXPECT_EQ(end_of(simulation, 1), transfer(0) + 100'000);
  EXPECT_EQ(simulation.counts(1).work, 100'000);

  SimulationOptions slower = simulation_options_of(2);
  slower.work_scale = 0.1;
  Simulation quick(slower);
  start_all(quick, works);
  ASSERT_TRUE(quick.run().has_value());
  EXPECT_EQ(end_of(quick, 1), transfer(0) + 10'000);
}

AllreduceSettings simulation_settings_of(uint64_t dimension) {
  AllreduceSettings settings;
  settings.dimension = dimension;
  return settings;
}

/// Ranks that all have the same k indices: recursive doubling sends k pairs in each of its steps and adds 2k entries
/// after it.
TEST(Simulation, RecursiveDoublingTakesWhatItsFormulaSays) {
  constexpr uint64_t kDimension = 100'000;
  constexpr uint64_t kCount = 50;
  for (const uint32_t ranks : {2u, 4u, 8u, 16u}) {
    auto all = SimulatedAllreduce::make(simulation_options_of(ranks), AlgorithmId::kSsarRecursiveDoubling,
                                        simulation_settings_of(kDimension))
                   .value();
    const auto own = [&](uint32_t rank) { return contribution_of(Spread::kSame, rank, ranks, kDimension, kCount, 1); };
    const auto took = all->step(own, [](uint32_t, Reduced, const SharedStream&) {});
    ASSERT_TRUE(took.has_value()) << took.error().message;
    const auto steps = static_cast<TimeNs>(std::countr_zero(ranks));
    EXPECT_EQ(*took, steps * (transfer(8 * kCount) + reduce_time(2 * kCount))) << ranks;
    EXPECT_EQ(all->simulation().counts(0).body_bytes_sent, static_cast<uint64_t>(steps) * 8 * kCount);
  }
}

/// The times, counts and results of a few steps, as one number.
uint64_t trace_of_run(AlgorithmId id, const SimulationOptions& options) {
  AllreduceSettings settings = simulation_settings_of(3'000);
  settings.k = 60;
  auto all = SimulatedAllreduce::make(options, id, settings).value();
  uint64_t trace = 0;
  for (uint64_t step = 0; step < 3; ++step) {
    const auto own = [&](uint32_t rank) {
      return contribution_of(Spread::kClustered, rank, options.ranks, 3'000, 60, step + 5);
    };
    const auto took = all->step(own, [&](uint32_t rank, Reduced result, const SharedStream&) {
      trace = trace * 31 + rank * 7 + result.sum.view.count();
    });
    EXPECT_TRUE(took.has_value()) << took.error().message;
    trace = trace * 31 + static_cast<uint64_t>(took.value_or(0));
  }
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    trace = trace * 31 + all->simulation().counts(rank).traffic.bytes_received;
  }
  return trace;
}

class SimulatedGrid : public ::testing::TestWithParam<AlgorithmInfo> {};

TEST_P(SimulatedGrid, TheSameSeedGivesTheSameTimes) {
  SimulationOptions options = simulation_options_of(6);
  options.jitter_max = 20'000;
  const uint64_t first = trace_of_run(GetParam().id, options);
  EXPECT_EQ(trace_of_run(GetParam().id, options), first);
  options.seed = 2;
  EXPECT_NE(trace_of_run(GetParam().id, options), first);
}

/// Sums under reordering: on every rank the bits that it has without, and the oracle's where it is the exact sum.
TEST_P(SimulatedGrid, ReorderingChangesNoResult) {
  constexpr uint64_t kDimension = 2'000;
  for (uint32_t ranks = 1; ranks <= 9; ++ranks) {
    for (const Spread spread : kSpreads) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::string(name_of(spread)));
      AllreduceSettings settings = simulation_settings_of(kDimension);
      settings.k = 50;
      settings.thresholds_period = settings.boundaries_period = 2;
      SimulationOptions reordering = simulation_options_of(ranks);
      reordering.jitter_max = 100 * kLatency;
      reordering.seed = ranks;
      auto quiet = SimulatedAllreduce::make(simulation_options_of(ranks), GetParam().id, settings).value();
      auto jittery = SimulatedAllreduce::make(reordering, GetParam().id, settings).value();
      for (uint64_t step = 0; step < 3; ++step) {
        millrace::testing::Entries entered;
        const auto own = [&](uint32_t rank) {
          return contribution_of(spread, rank, ranks, kDimension, 50, ranks + 100 * step);
        };
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          const SharedStream mine = own(rank);
          for (size_t i = 0; i < mine.view.indices.size(); ++i) entered[mine.view.indices[i]] += mine.view.values[i];
        }
        std::vector<SharedStream> sums;
        const auto keep = [&](uint32_t, Reduced result, const SharedStream&) { sums.push_back(std::move(result.sum)); };
        const auto one = quiet->step(own, keep);
        ASSERT_TRUE(one.has_value()) << one.error().message;
        const auto other = jittery->step(own, keep);
        ASSERT_TRUE(other.has_value()) << other.error().message;
        ASSERT_EQ(sums.size(), 2 * ranks);
        for (size_t i = 0; i < sums.size(); ++i) {
          // What chooses by time may choose another form of the sum there.
          const size_t like = GetParam().chooses && i >= ranks ? ranks : 0;
          ASSERT_TRUE(millrace::testing::same_bits(sums[i].view, sums[like].view));
        }
        if (GetParam().result != ResultKind::kExactSum) continue;
        for (size_t i = 0; i < sums[0].view.values.size(); ++i) {
          const auto index = static_cast<uint32_t>(sums[0].view.dense ? i : sums[0].view.indices[i]);
          ASSERT_EQ(sums[0].view.values[i], entered.contains(index) ? entered[index] : 0.0f) << index;
          entered.erase(index);
        }
        for (const auto& [index, value] : entered) ASSERT_EQ(value, 0) << index;
      }
    }
  }
}

constexpr uint32_t kSilenceMs = 100;
constexpr TimeNs kSilence = kSilenceMs * kNsPerMs;

/// Runs steps without end until rank `at_fault` stops; checks the errors of the others and their times.
void check_fault(AlgorithmId id, uint32_t ranks, const SimulatedFault& fault, TimeNs within) {
  SCOPED_TRACE("of " + std::to_string(ranks) + " ranks, " + std::to_string(fault.rank) + " stops at " +
               std::to_string(fault.at));
  SimulationOptions options = simulation_options_of(ranks);
  options.faults = {fault};
  options.group.silence_ms_max = kSilenceMs;
  AllreduceSettings settings = simulation_settings_of(3'000);
  settings.k = 60;
  auto all = SimulatedAllreduce::make(options, id, settings).value();
  Simulation& simulation = all->simulation();
  const auto own = [&](uint32_t rank) { return contribution_of(Spread::kUniform, rank, ranks, 3'000, 60, 3); };
  const auto step = [&] { return all->step(own, [](uint32_t, Reduced, const SharedStream&) {}); };
  int steps = 0;
  while (steps < 1'000 && step()) ++steps;
  ASSERT_LT(steps, 1'000);
  // A rank that had all its inputs has a result of that step, and the error in the next.
  ASSERT_FALSE(step().has_value());
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (rank == fault.rank) continue;
    const auto& ended = simulation.ended(rank);
    const auto failed =
        std::ranges::find_if(ended, [](const std::optional<Simulation::Ended>& one) { return one && !one->status; });
    ASSERT_NE(failed, ended.end()) << "rank " << rank;
    for (const auto& one : ended) ASSERT_TRUE(one.has_value()) << "rank " << rank << " hangs";
    const Error& error = (*failed)->status.error();
    EXPECT_NE(error.message.find("rank " + std::to_string(fault.rank)), std::string::npos) << error.message;
    EXPECT_EQ(simulation.failure(rank)->rank, fault.rank);
    EXPECT_GE((*failed)->at, fault.at);
    EXPECT_LE((*failed)->at, fault.at + within) << "rank " << rank;
  }
}

/// A step takes less than this here.
constexpr TimeNs kStepMax = 2 * kNsPerMs;

TEST_P(SimulatedGrid, AStuckRankIsNamedByAllWithinTheSilenceAndAQuarter) {
  for (const uint32_t ranks : {2u, 3u, 5u, 8u}) {
    for (const TimeNs at : {TimeNs{0}, TimeNs{1'500}, TimeNs{50'000}, TimeNs{1'000'000}}) {
      check_fault(GetParam().id, ranks, {ranks - 1, at, {}}, kSilence + kSilence / 4 + kStepMax);
      check_fault(GetParam().id, ranks, {0, at, {}}, kSilence + kSilence / 4 + kStepMax);
    }
  }
}

TEST_P(SimulatedGrid, ADeadRankIsNamedWhenTheTransportReportsIt) {
  for (const uint32_t ranks : {2u, 5u, 8u}) {
    check_fault(GetParam().id, ranks, {ranks / 2, 70'000, 5'000}, 5'000 + kStepMax);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SimulatedGrid, ::testing::ValuesIn(algorithms().begin(), algorithms().end()),
                         [](const auto& one) { return std::string(one.param.name); });

Task<Status> waits_for_ever(Channel& channel) {
  if (channel.rank() == 0) co_await channel.receive(1, 9);
  if (channel.rank() == 1) co_await channel.receive(0, 9);
  co_return Status{};
}

TEST(Simulation, EndsWhereNothingComesOfIt) {
  SimulationOptions options = simulation_options_of(3);
  options.end_at_max = 100 * kNsPerS;
  Simulation simulation(options);
  start_all(simulation, waits_for_ever);
  const Status ran = simulation.run();
  ASSERT_FALSE(ran.has_value());
  EXPECT_EQ(ran.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(end_of(simulation, 2), 0);
  EXPECT_FALSE(simulation.ended(0).back().has_value());
}

TEST(Simulation, AChainOfWaitingRanksEndsNamingTheOneThatIsStuck) {
  // Rank 0 waits for 1, that for 2, ... and the last is stuck: only its neighbour asks in vain.
  constexpr uint32_t kRanks = 6;
  SimulationOptions options = simulation_options_of(kRanks);
  options.group.silence_ms_max = kSilenceMs;
  options.faults = {{kRanks - 1, 10, {}}};
  Simulation simulation(options);
  const Body chain = [](Channel& channel) -> Task<Status> {
    if (channel.rank() + 1 < channel.size()) co_await channel.receive(channel.rank() + 1, 1);
    if (channel.rank() + 1 == channel.size()) co_await channel.receive(0, 2);
    if (channel.rank() > 0) channel.send(channel.rank() - 1, 1, {});
    co_return Status{};
  };
  start_all(simulation, chain);
  ASSERT_TRUE(simulation.run().has_value());
  for (uint32_t rank = 0; rank + 1 < kRanks; ++rank) {
    const auto& ended = simulation.ended(rank).back();
    ASSERT_TRUE(ended.has_value() && !ended->status.has_value());
    EXPECT_EQ(simulation.failure(rank)->rank, kRanks - 1);
    EXPECT_LE(ended->at, kSilence + kSilence / 4 + kNsPerMs);
  }
}

}  // namespace
}  // namespace millrace::peer::testing
