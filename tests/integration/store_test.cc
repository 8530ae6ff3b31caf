// Weights that real shards hold: workers of one process pull them, place the first ones, and find them again after the
// servers were restarted.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <csignal>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>

#include "kernels/base/random.h"
#include "millrace/millrace.h"
#include "tests/integration/cluster_processes.h"
#include "tests/support/oracles/optimizer_oracle.h"
#include "tests/worker/session_options.h"

namespace millrace::testing {
namespace {

constexpr uint32_t kWorkers = 2;
constexpr uint64_t kDimension = 20'000;
constexpr uint64_t kSmall = 10;  ///< of two tensors that are fused

/// Returns the gradient of tensor 0 that a worker pushes at a step.
std::vector<float> gradient_of(uint32_t worker, uint64_t step) {
  RandomSequence random(random_key(5, worker, step));
  std::vector<float> gradient(kDimension);
  for (float& one : gradient) {
    if (random.next_below(10) == 0) one = static_cast<float>(static_cast<int>(random.next_below(17)) - 8) / 16;
  }
  return gradient;
}

std::vector<float> first_weights() {
  std::vector<float> weights(kDimension);
  for (size_t at = 0; at < weights.size(); ++at) weights[at] = static_cast<float>(at % 64) / 8;
  return weights;
}

void replay(OptimizerOracle& oracle, uint64_t step) {
  std::map<uint32_t, float> sum;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    const std::vector<float> gradient = gradient_of(worker, step);
    for (uint32_t index = 0; index < kDimension; ++index) sum[index] += gradient[index];
  }
  oracle.step(sum, kWorkers);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(
      a, b, {}, [](float x) { return std::bit_cast<uint32_t>(x); }, [](float x) { return std::bit_cast<uint32_t>(x); });
}

class StoreProcesses : public ClusterProcesses {
 protected:
  SessionOptions job(uint32_t worker) const {
    SessionOptions options;
    options.name = "stored";
    options.worker = worker;
    options.workers = kWorkers;
    options.shards = addresses_;
    options.select = Selection::all();
    options.updates.combine = Combine::kMean;
    options.store = Store{optimizer::Adam{0.125}};
    options.layout.parts_per_shard = 2;
    options.liveness.dead_after = std::chrono::milliseconds(60'000);
    return options;
  }
  static std::vector<TensorOptions> tensors() {
    return {
        {.name = "w", .dimension = kDimension}, {.name = "a", .dimension = kSmall}, {.name = "b", .dimension = kSmall}};
  }
  /// Runs a function in the place of each worker; an exception of a session fails the test.
  void work(const std::function<void(uint32_t worker)>& function) {
    std::vector<std::thread> threads;
    std::vector<std::string> errors(kWorkers);
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      threads.emplace_back([&, worker] {
        try {
          function(worker);
        } catch (const JobError& error) {
          errors[worker] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  /// drawn_for: the gradient's step, where it is another one.
  static void push_and_await(Session& session, uint32_t worker, uint64_t step, float small_gradient,
                             std::optional<uint64_t> drawn_for = std::nullopt) {
    session.push(0, gradient_of(worker, drawn_for.value_or(step)));
    const std::vector<float> small(kSmall, small_gradient);
    session.push(1, small);
    session.push(2, small);
    for (const size_t tensor : {0, 1, 2}) session.await(tensor, step);
  }
  /// The shard saves, and has.
  void save_now(uint32_t shard) {
    const std::string log = "shard-" + std::to_string(shard) + ".log";
    const auto saves = [&] {
      const std::string text = text_of(log);
      size_t count = 0;
      for (size_t at = 0; (at = text.find("its store is saved", at)) != std::string::npos; ++at) ++count;
      return count;
    };
    const size_t before = saves();
    ::kill(shards_[shard]->pid(), SIGUSR2);
    while (saves() == before) std::this_thread::yield();
  }
  void kill_and_start(uint32_t shard) {
    const std::string address = addresses_[shard];
    shards_[shard]->kill_now();
    ASSERT_NO_FATAL_FAILURE(start_shard(shard, 2, address));
  }
  /// work(), while this thread does something else: servers end with the thread that started them.
  void work_beside(const std::function<void(uint32_t worker)>& function, const std::function<void()>& beside) {
    working_ = true;
    std::thread all([&] {
      work(function);
      working_ = false;
    });
    while (working_.load()) beside();
    all.join();
  }
  std::atomic<bool> working_ = false;
  void restart_servers() {
    for (const auto& shard : shards_) ::kill(shard->pid(), SIGTERM);
    for (const auto& shard : shards_)
      EXPECT_EQ(shard->wait(kPatienceMs).value_or(launch::ExitReport{.exit_code = -1}).exit_code, 0);
    shards_.clear();
    ASSERT_NO_FATAL_FAILURE(start_shards(2));
  }
};

/// expected[n]: the weights of tensor 0 after n steps.
std::vector<std::vector<float>> replayed(uint64_t steps, std::vector<float> first = first_weights()) {
  OptimizerOracle oracle(optimizer_from_text("adam:0.125").value(), std::move(first));
  std::vector<std::vector<float>> expected = {oracle.weights()};
  for (uint64_t step = 0; step < steps; ++step) {
    replay(oracle, step);
    expected.push_back(oracle.weights());
  }
  return expected;
}

/// Whole, ranges over the border of the shards, lists of indices.
void expect_pulls(Session& session, const std::vector<float>& now) {
  std::vector<float> range(700);
  session.pull_range(0, 9'900, range);
  EXPECT_TRUE(same_bits(range, {now.begin() + 9'900, now.begin() + 10'600}));
  const std::vector<uint32_t> indices = {0, 3, 4'999, 5'000, 9'999, 10'000, 19'999};
  std::vector<float> some(indices.size());
  session.pull_indices(0, indices, some);
  for (size_t at = 0; at < indices.size(); ++at) EXPECT_EQ(some[at], now[indices[at]]) << indices[at];
  session.pull_indices(0, {}, {});
  // Rows that lie in one part and in several, and rows that are longer than a part.
  for (const uint32_t width : {1U, 16U, 37U, 300U, 6'000U, 20'000U}) {
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; row < kDimension / width; row += row % 3 + 1) rows.push_back(row);
    std::vector<float> expected;
    for (const uint32_t row : rows) expected.insert(expected.end(), &now[row * width], &now[row * width] + width);
    std::vector<float> found(rows.size() * width, -1);
    session.pull_rows(0, width, rows, found);
    EXPECT_TRUE(same_bits(found, expected)) << width;
  }
  std::vector<float> a(kSmall);
  std::vector<float> b(kSmall);
  session.pull(1, a);
  session.pull(2, b);
  for (const uint32_t width : {1U, 3U}) {
    std::vector<uint32_t> rows(kSmall / width);
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> found(rows.size() * width, -1);
    session.pull_rows(2, width, rows, found);
    EXPECT_TRUE(same_bits(found, {b.begin(), b.begin() + static_cast<ptrdiff_t>(found.size())})) << width;
  }
  EXPECT_NEAR(a[0], 1.0F - 5 * 0.125F, 1e-3F) << "tensors that share a part: 5 steps of the rate";
  EXPECT_NEAR(b[kSmall - 1], 2.0F - 5 * 0.125F, 1e-3F);
}

TEST_F(StoreProcesses, ServersRestarted_PullsEqualTheOptimizersReplay) {
  const std::string folder = path("saves");
  std::filesystem::create_directory(folder);
  server_flags_ = {"--store-dir", folder};
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  const std::vector<std::vector<float>> expected = replayed(8);
  work([&](uint32_t worker) {
    SessionOptions options = job(worker);
    options.store->begin = StoreBegin::kWorker;
    const auto session = Session::connect(options, options, tensors());
    // Only the lowest one's count.
    const std::vector<float> first = worker == 0 ? first_weights() : std::vector<float>(kDimension, 99);
    const std::vector<float> a(kSmall, 1.0F);
    const std::vector<float> b(kSmall, 2.0F);
    session->place_weights(std::vector<std::span<const float>>{first, a, b});
    std::vector<float> weights(kDimension);
    EXPECT_EQ(session->pull(0, weights).most, 0u);
    EXPECT_TRUE(same_bits(weights, expected[0])) << "before the first step";
    for (uint64_t step = 0; step < 5; ++step) {
      push_and_await(*session, worker, step, 1.0F);
      const PulledSteps steps = session->pull(0, weights);
      EXPECT_EQ(steps.least, step + 1);
      EXPECT_EQ(steps.most, step + 1) << "the next step waits for this worker";
      ASSERT_TRUE(same_bits(weights, expected[step + 1])) << step;
    }
    expect_pulls(*session, expected[5]);
    session->finish();
  });
  ASSERT_NO_FATAL_FAILURE(restart_servers());
  work([&](uint32_t worker) {
    SessionOptions options = job(worker);
    options.store->begin = StoreBegin::kSaved;
    const auto session = Session::connect(options, options, tensors());
    std::vector<float> weights(kDimension);
    session->pull(0, weights);
    EXPECT_TRUE(same_bits(weights, expected[5])) << "as the servers before had them";
    for (uint64_t step = 0; step < 3; ++step) push_and_await(*session, worker, step, 0, 5 + step);
    session->pull(0, weights, {.at_least_step = 3});
    EXPECT_TRUE(same_bits(weights, expected[8])) << "the optimizer's state too";
    session->finish();
  });
}

/// A shard answers no pull before it has saved the first weights of all parts, which are more than pulls in flight.
TEST_F(StoreProcesses, ShardsSaveTheFirstWeightsOfManyParts) {
  const std::string folder = path("saves");
  std::filesystem::create_directory(folder);
  server_flags_ = {"--store-dir", folder};
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  const std::vector<float> first = first_weights();
  const std::vector<float> small(kSmall, 1.0F);
  work([&](uint32_t worker) {
    SessionOptions options = job(worker);
    options.store->begin = StoreBegin::kWorker;
    options.layout.parts_per_shard = 16;  // of each of the two buckets
    const auto session = Session::connect(options, options, tensors());
    session->place_weights(std::vector<std::span<const float>>{first, small, small});
    std::vector<float> weights(kDimension);
    session->pull(0, weights);
    EXPECT_TRUE(same_bits(weights, first));
    session->finish();
  });
}

TEST_F(StoreProcesses, ASignalSavesWhileTheJobRuns) {
  const std::string folder = path("saves");
  std::filesystem::create_directory(folder);
  server_flags_ = {"--store-dir", folder};
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  const auto saves = [&folder] {
    return std::ranges::count_if(std::filesystem::directory_iterator(folder), [](const auto& entry) {
      return entry.path().extension() != ".owner";  // which shards write beside their saves
    });
  };
  work([&](uint32_t worker) {
    const SessionOptions options = job(worker);
    const auto session = Session::connect(options, options, tensors());
    push_and_await(*session, worker, 0, 1.0F);
    if (worker == 0) {
      // Saves at one shard, so that the other shard's save can be distinguished.
      ASSERT_EQ(saves(), 0);
      save_now(0);
      EXPECT_EQ(saves(), 1);
    }
    push_and_await(*session, worker, 1, 1.0F);
    session->finish();
  });
}

/// One save, then both shards killed in turn, the second one with no save but that of the first weights.
TEST_F(StoreProcesses, AKilledShardRecoversFromItsSaveAndTheWorkersUpdates) {
  const std::string folder = path("saves");
  std::filesystem::create_directory(folder);
  server_flags_ = {"--store-dir", folder};
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  constexpr uint64_t kSteps = 12;
  const std::vector<std::vector<float>> expected = replayed(kSteps);
  constexpr uint32_t kNone = UINT32_MAX;
  std::atomic<uint32_t> to_kill = kNone;
  const auto kill_one = [&to_kill](uint32_t shard) {
    to_kill = shard;
    to_kill.wait(shard);
  };
  const auto train = [&](uint32_t worker) {
    SessionOptions options = job(worker);
    options.store->begin = StoreBegin::kWorker;
    options.liveness.heartbeat = std::chrono::milliseconds(200);
    const auto session = Session::connect(options, options, tensors());
    const std::vector<float> first = first_weights();
    const std::vector<float> small(kSmall, 1.0F);
    session->place_weights(std::vector<std::span<const float>>{first, small, small});
    std::vector<float> weights(kDimension);
    for (uint64_t step = 0; step < kSteps; ++step) {
      if (worker == 0 && step == 3) save_now(0);
      if (worker == 0 && step == 7) kill_one(0);
      if (worker == 0 && step == 9) kill_one(1);
      push_and_await(*session, worker, step, 1.0F);
      if (worker == 0 && step == 10) kill_one(0);
      EXPECT_EQ(session->pull(0, weights).least, step + 1);
      ASSERT_TRUE(same_bits(weights, expected[step + 1])) << step;
    }
    session->finish();
  };
  work_beside(train, [&] {
    const uint32_t shard = to_kill.load();
    if (shard == kNone) return std::this_thread::yield();
    kill_and_start(shard);
    to_kill = kNone;
    to_kill.notify_all();
  });
}

/// Shards are killed at any moment of steps, pulls and saves.
TEST_F(StoreProcesses, ShardsThatAreKilledAtRandomDoNotChangeTheWeights) {
  const std::string folder = path("saves");
  std::filesystem::create_directory(folder);
  server_flags_ = {"--store-dir", folder, "--store-save-every", "1s"};
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  constexpr uint64_t kSteps = 60;
  const std::vector<std::vector<float>> expected = replayed(kSteps, std::vector<float>(kDimension));
  int kills = 0;
  const auto train = [&](uint32_t worker) {
    SessionOptions options = job(worker);
    options.liveness.heartbeat = std::chrono::milliseconds(100);
    const auto session = Session::connect(options, options, tensors());
    std::vector<float> weights(kDimension);
    for (uint64_t step = 0; step < kSteps; ++step) {
      push_and_await(*session, worker, step, 1.0F);
      EXPECT_EQ(session->pull(0, weights).least, step + 1);
      ASSERT_TRUE(same_bits(weights, expected[step + 1])) << step;
      ::poll(nullptr, 0, 20);  // so that the job lasts as long as the punishment
    }
    session->finish();
  };
  RandomSequence random(random_key(11, 0, 0));
  work_beside(train, [&] {
    ::poll(nullptr, 0, static_cast<int>(50 + random.next_below(300)));
    const auto shard = static_cast<uint32_t>(random.next_below(2));
    if (random.next_below(2) == 0) ::kill(shards_[shard]->pid(), SIGUSR2);
    if (!working_.load() || kills == 8) return;
    kill_and_start(shard);
    ++kills;
  });
  EXPECT_GE(kills, 4);
}

TEST_F(StoreProcesses, WeightsNotInTime_ReturnedAsAResultAndTheCallMayBeRepeated) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  const std::vector<float> first = first_weights();
  const std::vector<float> small(kSmall, 1.0F);
  const std::vector<std::span<const float>> all = {first, small, small};
  constexpr std::chrono::milliseconds kTooShort(50);
  std::atomic<bool> waited = false;
  work([&](uint32_t worker) {
    SessionOptions options = job(worker);
    options.store->begin = StoreBegin::kWorker;
    const auto session = Session::connect(options, options, tensors());
    std::vector<float> out(kDimension);
    if (worker == 1) {  // the lowest worker's are taken: this one waits for them
      EXPECT_FALSE(session->try_place_weights(all, kTooShort));
      EXPECT_FALSE(session->try_pull(0, out, {.timeout = kTooShort}).has_value());
      waited = true;
      EXPECT_TRUE(session->try_place_weights(all, kDefaultTimeout));
    } else {
      while (!waited) std::this_thread::yield();
      EXPECT_TRUE(session->try_place_weights(all, kDefaultTimeout));
    }
    EXPECT_TRUE(session->try_pull(0, out).has_value());
    EXPECT_EQ(out, first);
    session->finish();
  });
}

TEST_F(StoreProcesses, AFailedStoreCallReportsItsReason) {
  ASSERT_NO_FATAL_FAILURE(start_shards(1));
  const auto reason = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const JobError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  SessionOptions options = job(0);
  options.workers = 1;
  const auto session = Session::connect(options, options, tensors());
  std::vector<float> out(kDimension);
  const auto expect = [&](const std::string& words, const std::function<void()>& call) {
    EXPECT_NE(reason(call).find(words), std::string::npos) << reason(call);
  };
  expect("10 places for a tensor of dimension 20000", [&] { session->pull(0, std::span(out).first(10)); });
  expect("20000 weights from 1 on", [&] { session->pull_range(0, 1, out); });
  expect("tensor 3 of a job with 3", [&] { session->pull(3, out); });
  expect("increase strictly", [&] { session->pull_indices(0, std::vector<uint32_t>{2, 2}, std::span(out).first(2)); });
  expect("index 20000", [&] { session->pull_indices(0, std::vector<uint32_t>{20'000}, std::span(out).first(1)); });
  expect("2 indices and 1 places",
         [&] { session->pull_indices(0, std::vector<uint32_t>{1, 2}, std::span(out).first(1)); });
  const std::vector<uint32_t> rows = {1, 2'500};
  expect("row 2500 of a tensor", [&] { session->pull_rows(0, 8, rows, std::span(out).first(16)); });
  expect("2 rows of 8 and 15 places", [&] { session->pull_rows(0, 8, rows, std::span(out).first(15)); });
  expect("rows of 0", [&] { session->pull_rows(0, 0, rows, {}); });
  expect("row 2500 of a tensor", [&] { session->push_rows(0, 8, rows, std::span(out).first(16)); });
  expect("not there within 50 ms",
         [&] { session->pull(0, out, {.at_least_step = 1, .timeout = std::chrono::milliseconds(50)}); });
  EXPECT_FALSE(session->try_pull(0, out, {.at_least_step = 1, .timeout = std::chrono::milliseconds(50)}).has_value());
  expect("does not begin with a worker's weights",
         [&] { session->place_weights(std::vector<std::span<const float>>{out, out, out}); });
  session->pull(0, out);  // after all that the next one is answered
  session->finish();
  expect("the session is finished", [&] { session->pull(0, out); });
  SessionOptions without = job(0);
  without.workers = 1;
  without.name = "without";
  without.store = std::nullopt;
  const auto other = Session::connect(without, without, tensors());
  expect("the job has no store", [&] { other->pull(0, out); });
  other->finish();
  SessionOptions absent = job(0);
  absent.workers = 1;
  absent.name = "absent";
  absent.store->begin = StoreBegin::kSaved;
  expect("--store-dir", [&] { Session::connect(absent, absent, tensors()); });
}

}  // namespace
}  // namespace millrace::testing
