#include "worker/peer/group/peer_group.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "kernels/base/bytes.h"
#include "tests/support/oracles/stream_oracle.h"
#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/transport/tcp_ranks.h"
#include "worker/peer/transport/thread_network.h"

/// Groups over threads and over TCP: blocking and not, several in flight, with a thread of their own, with a rank that
/// dies.
namespace millrace::peer::testing {
namespace {

AllreduceSettings group_settings_of(uint64_t dimension) {
  AllreduceSettings settings;
  settings.dimension = dimension;
  return settings;
}

SharedStream own_of(uint32_t rank, uint32_t size, uint64_t dimension, uint64_t seed) {
  return contribution_of(Spread::kUniform, rank, size, dimension, dimension / 50, seed);
}

Stream expected_sum(uint32_t size, uint64_t dimension, uint64_t seed) {
  millrace::testing::Entries sum;
  for (uint32_t rank = 0; rank < size; ++rank) {
    const SharedStream own = own_of(rank, size, dimension, seed);
    for (size_t i = 0; i < own.view.indices.size(); ++i) sum[own.view.indices[i]] += own.view.values[i];
  }
  return millrace::testing::stream_of(dimension, sum);
}

template <typename Rank>
void group_on_all(uint32_t size, Rank rank) {
  std::vector<std::jthread> threads;
  for (uint32_t at = 0; at < size; ++at) threads.emplace_back([&rank, at] { rank(at); });
}

enum class Over { kThreads, kTcp };

/// The ranks of one process.
class GroupNetwork {
 public:
  GroupNetwork(Over over, uint32_t size) {
    if (over == Over::kTcp) {
      tcp_.emplace(size);
    } else {
      threads_.emplace(size);
    }
  }
  Communicator& communicator(uint32_t rank) { return tcp_ ? tcp_->communicator(rank) : threads_->communicator(rank); }
  void lose(uint32_t rank) { return tcp_ ? tcp_->lose(rank) : threads_->lose(rank); }
  void leave(uint32_t rank) { return tcp_ ? tcp_->leave(rank) : threads_->leave(rank); }

 private:
  std::optional<ThreadNetwork> threads_;
  std::optional<TcpNetwork> tcp_;
};

class PeerGroups : public ::testing::TestWithParam<std::tuple<Over, Progress>> {
 protected:
  static GroupNetwork network_of(uint32_t size) { return {std::get<Over>(GetParam()), size}; }
  static Progress progress() { return std::get<Progress>(GetParam()); }
};

TEST_P(PeerGroups, SeveralAllreducesInFlight) {
  constexpr uint32_t kSize = 5;
  constexpr uint64_t kDimension = 20'000;
  constexpr int kInFlight = 4;
  GroupNetwork network = network_of(kSize);
  group_on_all(kSize, [&](uint32_t rank) {
    PeerGroup group(network.communicator(rank), {}, progress());
    std::vector<std::unique_ptr<Allreduce>> made;
    std::vector<Pending<Reduced>> pending;
    for (int i = 0; i < kInFlight; ++i) {
      made.push_back(make_allreduce(AlgorithmId::kSsarRecursiveDoubling, group_settings_of(kDimension)).value());
      pending.push_back(group
                            .start_allreduce(*made.back(), group_settings_of(kDimension),
                                             own_of(rank, kSize, kDimension, static_cast<uint64_t>(i)))
                            .value());
    }
    for (int i = kInFlight - 1; i >= 0; --i) {
      const auto result = pending[static_cast<size_t>(i)].wait();
      ASSERT_TRUE(result.has_value()) << result.error().message;
      const Stream expected = expected_sum(kSize, kDimension, static_cast<uint64_t>(i));
      EXPECT_TRUE(millrace::testing::same_bits(result->sum.view, expected.view())) << "rank " << rank;
    }
  });
}

TEST_P(PeerGroups, ALostRankIsNamedOnAllOthers) {
  constexpr uint32_t kSize = 4;
  GroupNetwork network = network_of(kSize);
  group_on_all(kSize, [&](uint32_t rank) {
    if (rank == 3) return network.lose(3);
    PeerGroup group(network.communicator(rank), {}, progress());
    auto allreduce = make_allreduce(AlgorithmId::kSsarRecursiveDoubling, group_settings_of(1'000)).value();
    auto pending = group.start_allreduce(*allreduce, group_settings_of(1'000), own_of(rank, kSize, 1'000, 1));
    const auto result = pending ? pending->wait() : Result<Reduced>(std::unexpected(pending.error()));
    ASSERT_FALSE(result.has_value());
    EXPECT_NE(result.error().message.find("rank 3"), std::string::npos) << result.error().message;
    EXPECT_EQ(group.failure()->rank, 3u);
  });
}

TEST_P(PeerGroups, ARankThatLeavesInTheMiddleEndsTheGroup) {
  constexpr uint32_t kSize = 3;
  GroupNetwork network = network_of(kSize);
  group_on_all(kSize, [&](uint32_t rank) {
    PeerGroup group(network.communicator(rank), {}, progress());
    if (rank == 1) {
      const auto stuck = [](Channel& channel) -> Task<Result<int>> {
        co_await channel.receive(0, 99);
        co_return 1;
      };
      auto pending =
          group.start<int>(description_of(AlgorithmId::kSsarRecursiveDoubling, group_settings_of(1'000)), stuck);
      return;  // and the group is destroyed
    }
    auto allreduce = make_allreduce(AlgorithmId::kSsarRecursiveDoubling, group_settings_of(1'000)).value();
    auto pending = group.start_allreduce(*allreduce, group_settings_of(1'000), own_of(rank, kSize, 1'000, 1));
    const auto result = pending ? pending->wait() : Result<Reduced>(std::unexpected(pending.error()));
    ASSERT_FALSE(result.has_value());
    EXPECT_NE(result.error().message.find("rank 1"), std::string::npos) << result.error().message;
  });
}

TEST_P(PeerGroups, ARankThatLeavesInGoodOrderIsNamedAtOnce) {
  GroupNetwork network = network_of(2);
  GroupOptions options;
  options.silence_ms_max = 120'000;
  PeerGroup group(network.communicator(0), options, progress());
  auto allreduce = make_allreduce(AlgorithmId::kSsarRecursiveDoubling, group_settings_of(1'000)).value();
  auto pending = group.start_allreduce(*allreduce, group_settings_of(1'000), own_of(0, 2, 1'000, 1)).value();
  network.leave(1);
  EXPECT_TRUE(pending.wait_for(20 * kNsPerS)) << "before this rank asks where it is";
  ASSERT_TRUE(group.failure().has_value());
  EXPECT_EQ(group.failure()->error.message, "rank 1 has left the group");
  EXPECT_EQ(group.failure()->rank, std::optional<uint32_t>(1));
}

TEST_P(PeerGroups, ARankMayLeaveOnceItHasAllSums) {
  constexpr uint32_t kSize = 4;
  GroupNetwork network = network_of(kSize);
  group_on_all(kSize, [&](uint32_t rank) {
    {
      PeerGroup group(network.communicator(rank), {}, progress());
      AllreduceSettings settings = group_settings_of(1'000);
      settings.k = 100;
      for (uint64_t step = 0; step < 5; ++step) {
        auto allreduce = make_allreduce(AlgorithmId::kGtopk, settings).value();
        auto own = own_of(rank, kSize, 1'000, step);
        const auto sum = group.start_allreduce(*allreduce, settings, std::move(own)).value().wait();
        ASSERT_TRUE(sum.has_value()) << sum.error().message;
      }
    }
    network.leave(rank);
  });
}

/// Hands everything on, and notes how it was waited. May refuse to send.
class Noting final : public Communicator {
 public:
  explicit Noting(Communicator& inner) : inner_(inner) {}

  uint32_t rank() const override { return inner_.rank(); }
  uint32_t size() const override { return inner_.size(); }
  Status send(uint32_t to, PeerMessage message) override {
    if (refusal) return std::unexpected(*refusal);
    return inner_.send(to, std::move(message));
  }
  Result<std::optional<ReceivedMessage>> receive() override { return inner_.receive(); }
  std::optional<uint32_t> culprit() const override { return inner_.culprit(); }
  std::optional<uint32_t> take_heard() override { return inner_.take_heard(); }
  std::optional<uint32_t> take_lost() override { return inner_.take_lost(); }
  std::optional<uint32_t> take_left() override { return inner_.take_left(); }
  void wait(TimeNs at_most, WaitAs as) override {
    std::atomic<uint32_t>& waits = as == WaitAs::kIdle ? idle : as == WaitAs::kBackground ? background : between;
    ++waits;
    waits.notify_all();
    inner_.wait(at_most, as);
  }
  void wake() override { inner_.wake(); }
  TimeNs now() const override { return inner_.now(); }
  Traffic traffic() const override { return inner_.traffic(); }

  std::atomic<uint32_t> idle = 0;
  std::atomic<uint32_t> background = 0;
  std::atomic<uint32_t> between = 0;
  std::optional<Error> refusal;  ///< of every message

 private:
  Communicator& inner_;
};

TEST(PeerGroupsOverThreads, TheSenderIsAtFaultForATooLongMessage) {
  ThreadNetwork network(2);
  Noting noting(network.communicator(0));
  noting.refusal = Error{ErrorCode::kLimitExceeded, "a message that is too long"};
  PeerGroup group(noting, {}, Progress::kByCaller);
  const auto settings = group_settings_of(1'000);
  auto allreduce = make_allreduce(AlgorithmId::kSsarRecursiveDoubling, settings).value();
  const auto pending = group.start_allreduce(*allreduce, settings, own_of(0, 2, 1'000, 1));
  const auto failure = group.failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, std::optional<uint32_t>(0));
  EXPECT_EQ(failure->error.message, "rank 0 cannot send a message that is too long");
}

TEST(PeerGroupsOverThreads, TheReasonThatARankSentBeforeItLeftIsTheGroups) {
  ThreadNetwork network(2);
  Noting noting(network.communicator(0));
  noting.refusal = Error{ErrorCode::kUnavailable, "rank 1 has left the group"};
  PeerGroup group(noting, {}, Progress::kByCaller);
  PeerMessage abort;
  abort.kind = MessageKind::kAbort;
  ByteBuffer body;
  ByteWriter out(body);
  out.put(static_cast<uint16_t>(ErrorCode::kNonFinite));
  out.put(uint32_t{1 + 1});
  const std::string_view text = "rank 1: NaN";
  out.put_array(std::span<const char>(text));
  abort.body = SharedBytes::from(std::move(body));
  ASSERT_TRUE(network.communicator(1).send(0, std::move(abort)).has_value());
  const auto settings = group_settings_of(1'000);
  auto allreduce = make_allreduce(AlgorithmId::kSsarRecursiveDoubling, settings).value();
  const auto pending = group.start_allreduce(*allreduce, settings, own_of(0, 2, 1'000, 1));
  ASSERT_TRUE(group.failure().has_value());
  EXPECT_EQ(group.failure()->error.code, ErrorCode::kNonFinite);
  EXPECT_EQ(group.failure()->error.message, text);
  EXPECT_EQ(group.failure()->rank, std::optional<uint32_t>(1));
}

/// Carries bytes between two sockets at a rate, in both directions.
class SlowWay {
 public:
  /// bytes_max  in one direction; then it stops.
  SlowWay(Descriptor one, Descriptor other, size_t bytes_a_ms, size_t bytes_max = SIZE_MAX)
      : ends_{std::move(one), std::move(other)},
        bytes_a_ms_(bytes_a_ms),
        left_{bytes_max, bytes_max},
        thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            for (const size_t from : {size_t{0}, size_t{1}}) carry(from);
            ::poll(nullptr, 0, 1);
          }
        }) {}

 private:
  void carry(size_t from) {
    ByteBuffer& bytes = under_way_[from];
    if (bytes.empty()) {
      const TimeNs now = monotonic_now_ns();
      const TimeNs passed = std::min(now - std::exchange(last_[from], now), 20 * kNsPerMs);
      bytes.resize(std::min(static_cast<size_t>(passed) * bytes_a_ms_ / kNsPerMs, left_[from]));
      const ssize_t found = ::recv(ends_[from].number(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      bytes.resize(static_cast<size_t>(std::max<ssize_t>(found, 0)));
      left_[from] -= bytes.size();
    }
    const ssize_t sent = ::send(ends_[1 - from].number(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) bytes.erase(bytes.begin(), bytes.begin() + sent);
  }

  std::array<Descriptor, 2> ends_;
  size_t bytes_a_ms_;
  std::array<size_t, 2> left_;
  std::array<TimeNs, 2> last_{};
  std::array<ByteBuffer, 2> under_way_;
  std::jthread thread_;
};

/// Returns the result of both ranks of gtopk, whose messages have 400 kB, over a way of 100 kB/s. A message takes twice
/// the limit of silence. The limit is far above the time of the arithmetic, also with a sanitizer on a busy machine.
std::array<Result<Reduced>, 2> gtopk_over_a_slow_way(SocketsOver over, size_t bytes_max) {
  auto near_zero = connected_sockets(over), near_one = connected_sockets(over);
  auto ranks = ranks_over(std::move(near_zero[0]), std::move(near_one[0]));
  const SlowWay way(std::move(near_zero[1]), std::move(near_one[1]), 100, bytes_max);
  AllreduceSettings settings = group_settings_of(100'000);
  settings.k = 50'000;
  GroupOptions options;
  options.silence_ms_max = 2'000;
  std::array<Result<Reduced>, 2> results;
  std::latch done(2);  // a group that is destroyed sends nothing more
  group_on_all(2, [&](uint32_t rank) {
    PeerGroup group(*ranks[rank], options, Progress::kByThread);
    auto allreduce = make_allreduce(AlgorithmId::kGtopk, settings).value();
    auto own = contribution_of(Spread::kUniform, rank, 2, settings.dimension, settings.k, 1);
    results[rank] = group.start_allreduce(*allreduce, settings, std::move(own)).value().wait();
    done.arrive_and_wait();
  });
  return results;
}

TEST(PeerGroupsOverTcp, ALongMessageOverASlowWayIsNoSilence) {
  for (const SocketsOver over : {SocketsOver::kUnix, SocketsOver::kTcp}) {
    const auto results = gtopk_over_a_slow_way(over, SIZE_MAX);
    for (const auto& result : results) ASSERT_TRUE(result.has_value()) << result.error().message;
    EXPECT_EQ(results[0]->sum.view.indices.size(), 50'000U);
    EXPECT_TRUE(millrace::testing::same_bits(results[0]->sum.view, results[1]->sum.view));
  }
}

TEST(PeerGroupsOverTcp, AWayThatStopsInALongMessageIsSilence) {
  for (const SocketsOver over : {SocketsOver::kUnix, SocketsOver::kTcp}) {
    for (const auto& result : gtopk_over_a_slow_way(over, 100'000)) {
      ASSERT_FALSE(result.has_value());
      EXPECT_EQ(result.error().code, ErrorCode::kTimeout) << result.error().message;
    }
  }
}

TEST(PeerGroupsOverTcp, AStoppedRankIsNamedWhileSmallSumsStart) {
  auto sockets = connected_sockets(SocketsOver::kTcp);
  std::vector<std::unique_ptr<TcpLink>> links(2);
  links[1] = plain_link(std::move(sockets[0]));
  const auto zero = TcpCommunicator::over(0, std::move(links)).value();
  GroupOptions options;
  options.silence_ms_max = 200;
  const auto settings = group_settings_of(1'000);
  std::vector<std::unique_ptr<Allreduce>> tensors;
  std::vector<Pending<Reduced>> pending;
  PeerGroup group(*zero, options, Progress::kByThread);
  for (int i = 0; i < 100 && !group.failure(); ++i) {
    tensors.push_back(make_allreduce(AlgorithmId::kSsarRecursiveDoubling, settings).value());
    auto started = group.start_allreduce(*tensors.back(), settings, own_of(0, 2, 1'000, 1));
    if (started) pending.push_back(std::move(*started));
    ::poll(nullptr, 0, 20);
  }
  const auto failure = group.failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->error.code, ErrorCode::kTimeout) << failure->error.message;
  EXPECT_EQ(failure->rank, std::optional<uint32_t>(1));
}

TEST(PeerGroupsOverThreads, TheirThreadWaitsInTheBackgroundUnlessACallerIsBlocked) {
  ThreadNetwork network(2);
  Noting noting(network.communicator(0));
  PeerGroup group(noting, {}, Progress::kByThread);
  const auto settings = group_settings_of(1'000);
  auto allreduce = make_allreduce(AlgorithmId::kSsarRecursiveDoubling, settings).value();
  auto pending = group.start_allreduce(*allreduce, settings, own_of(0, 2, 1'000, 1)).value();
  // A caller that has started it may compute now.
  noting.wake();
  noting.background.wait(0);
  EXPECT_EQ(noting.idle, 0U);
  {
    const std::jthread waits([&pending] { EXPECT_TRUE(pending.wait().has_value()); });
    noting.idle.wait(0);
    PeerGroup other(network.communicator(1), {}, Progress::kByCaller);
    auto theirs = make_allreduce(AlgorithmId::kSsarRecursiveDoubling, settings).value();
    EXPECT_TRUE(other.start_allreduce(*theirs, settings, own_of(1, 2, 1'000, 1)).value().wait().has_value());
  }
  // Nothing is under way any more.
  const uint32_t before = noting.between;
  noting.wake();
  noting.between.wait(before);
}

/// Values whose sums depend on the order of the addends.
SharedStream uneven_of(uint32_t rank, uint32_t size, uint64_t dimension, uint64_t seed) {
  Stream stream = own_of(rank, size, dimension, seed).copy();
  for (float& value : stream.values) value /= 3;
  return SharedStream::from(std::move(stream));
}

/// Returns the sums of every rank, of several tensors and steps in flight.
std::vector<std::vector<Stream>> sums_over(Over over, const AlgorithmInfo& algorithm) {
  constexpr uint32_t kRanks = 4;
  constexpr uint64_t kDimension = 5'000, kTensors = 3, kSteps = 3;
  AllreduceSettings settings = group_settings_of(kDimension);
  settings.k = 100;
  settings.boundaries = AllreduceSettings::Boundaries::kPooled;
  GroupNetwork network(over, kRanks);
  std::vector<std::vector<Stream>> sums(kRanks);
  group_on_all(kRanks, [&](uint32_t rank) {
    PeerGroup group(network.communicator(rank), {}, Progress::kByThread);
    std::vector<std::unique_ptr<Allreduce>> tensors;
    for (uint64_t i = 0; i < kTensors; ++i) tensors.push_back(make_allreduce(algorithm.id, settings).value());
    for (uint64_t step = 0; step < kSteps; ++step) {
      std::vector<Pending<Reduced>> pending;
      for (uint64_t i = 0; i < kTensors; ++i) {
        auto own = uneven_of(rank, kRanks, kDimension, step * kTensors + i);
        pending.push_back(group.start_allreduce(*tensors[i], settings, std::move(own)).value());
      }
      for (auto& one : pending) sums[rank].push_back(one.wait().value().sum.copy());
    }
  });
  return sums;
}

TEST(PeerGroupsOfAllTransports, EveryAlgorithmGivesTheSameBitsOnAllRanksAndOverAllTransports) {
  for (const AlgorithmInfo& algorithm : algorithms()) {
    SCOPED_TRACE(algorithm.name);
    const auto over_threads = sums_over(Over::kThreads, algorithm), over_tcp = sums_over(Over::kTcp, algorithm);
    for (const auto* sums : {&over_threads, &over_tcp}) {
      for (const auto& of_rank : *sums) {
        // The automatic choice depends on measured times, and so does its order of addends.
        const auto& expected = algorithm.id == AlgorithmId::kAuto ? sums->front() : over_threads.front();
        ASSERT_EQ(of_rank.size(), 9U);
        for (size_t i = 0; i < of_rank.size(); ++i) {
          EXPECT_GT(of_rank[i].count(), 0u);
          EXPECT_TRUE(millrace::testing::same_bits(of_rank[i].view(), expected[i].view()));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Both, PeerGroups,
                         ::testing::Combine(::testing::Values(Over::kThreads, Over::kTcp),
                                            ::testing::Values(Progress::kByCaller, Progress::kByThread)),
                         [](const auto& one) {
                           const bool tcp = std::get<Over>(one.param) == Over::kTcp;
                           const bool by_caller = std::get<Progress>(one.param) == Progress::kByCaller;
                           return std::string(tcp ? "Tcp" : "Threads") + (by_caller ? "ByCaller" : "ByThread");
                         });

}  // namespace
}  // namespace millrace::peer::testing
