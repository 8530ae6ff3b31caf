#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <millrace/peer.h>
#include <poll.h>

#include <array>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/keys/key_files.h"
#include "tests/worker/peer/library/library_ranks.h"

/// The installed communicator over TCP.
namespace millrace::peers::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// Ranks that tell each other their addresses in memory.
class Exchange {
 public:
  explicit Exchange(uint32_t size) : addresses_(size), all_(size) {}
  TcpOptions options_of(uint32_t rank) {
    TcpOptions options;
    options.rank = rank;
    options.listen = "127.0.0.1:0";
    options.exchange = [this, rank](const std::string& own) {
      addresses_[rank] = own;
      all_.arrive_and_wait();
      return addresses_;
    };
    return options;
  }

 private:
  std::vector<std::string> addresses_;
  std::barrier<> all_;
};

std::vector<float> oktopk_sum_of(Group& group) {
  constexpr uint64_t kDimension = 5'000;
  Allreduce allreduce(group, {.dimension = kDimension, .algorithm = Algorithm::oktopk(0.02)});
  std::vector<float> sums(kDimension, 0.0F);
  for (uint32_t step = 0; step < 3; ++step) {
    const auto own = dense_of(drawn_entries(kDimension, 500, 10 * step + group.rank() + 1), kDimension);
    allreduce.start(own).wait().sum.add_to(sums);
  }
  group.barrier();
  return sums;
}

TEST(PeersOverTcp, SumsAreTheBitsOfRanksOfOneProcess) {
  static constexpr uint32_t kSize = 3;
  std::array<std::vector<float>, kSize> over_tcp, in_process;
  Exchange exchange(kSize);
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        Group group(Communicator::over_tcp(exchange.options_of(rank)));
        EXPECT_EQ(group.size(), kSize);
        over_tcp[rank] = oktopk_sum_of(group);
      });
    }
  }
  on_ranks_of_library(kSize, {}, [&](Group& group) { in_process[group.rank()] = oktopk_sum_of(group); });
  for (uint32_t rank = 0; rank < kSize; ++rank) EXPECT_EQ(over_tcp[rank], in_process[0]);
}

TEST(PeersOverTcp, SumsAndGathersKeepWithinTheLongestBody) {
  static constexpr uint32_t kSize = 2;
  static constexpr uint64_t kBodyBytesMax = 1 << 20;
  Exchange exchange(kSize);
  std::vector<std::jthread> threads;
  for (uint32_t rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&exchange, rank] {
      TcpOptions options = exchange.options_of(rank);
      options.body_bytes_max = kBodyBytesMax;
      Group group(Communicator::over_tcp(options));
      const std::vector<std::byte> too_long(2 * kBodyBytesMax);
      const auto [code, sentence] = thrown_by([&] { static_cast<void>(group.start_gather(too_long)); });
      EXPECT_EQ(code, JobErrorCode::kLimitExceeded) << sentence;
      const std::vector<float> own(400'000, 1.0F);  // 1.6 MB
      Allreduce allreduce(group, {.dimension = own.size()});
      constexpr size_t kStepsOfFirstPass = 25;  // eight candidates, three steps each
      for (size_t step = 0; step < kStepsOfFirstPass; ++step) {
        EXPECT_EQ(allreduce.start(own).wait().sum.values[step], 2.0F);
      }
      EXPECT_FALSE(group.failure().has_value());
      group.barrier();
    });
  }
}

/// A folder with a new key, job.key.
class KeyFolder {
 public:
  KeyFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "millrace-peer-keys-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    EXPECT_TRUE(protocol::write_new_keys(path_, "job").has_value());
  }
  ~KeyFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name = "job.key") const { return path_ + "/" + name; }

 private:
  std::string path_;
};

TEST(PeersOverTcp, RanksWithOneKeyHaveTheBitsOfRanksOfOneProcess) {
  static constexpr uint32_t kSize = 3;
  const KeyFolder keys;
  std::array<std::vector<float>, kSize> over_tcp, in_process;
  Exchange exchange(kSize);
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      threads.emplace_back([&, rank] {
        TcpOptions options = exchange.options_of(rank);
        options.key_file = keys.file();
        Group group(Communicator::over_tcp(options));
        over_tcp[rank] = oktopk_sum_of(group);
      });
    }
  }
  on_ranks_of_library(kSize, {}, [&](Group& group) { in_process[group.rank()] = oktopk_sum_of(group); });
  for (uint32_t rank = 0; rank < kSize; ++rank) EXPECT_EQ(over_tcp[rank], in_process[0]);
}

TEST(PeersOverTcp, AddressesThatOtherMachinesReachNeedAKeyOrInsecure) {
  const KeyFolder keys;
  TcpOptions options{
      .addresses = {"127.0.0.1:1", "127.0.0.1:2"}, .listen = "0.0.0.0:0", .connect_max = milliseconds(1)};
  const auto thrown = [&] { return thrown_by([&] { Communicator::over_tcp(options); }); };
  EXPECT_EQ(thrown().first, JobErrorCode::kInvalidArgument);
  EXPECT_THAT(thrown().second, HasSubstr("listen 0.0.0.0:0: other machines may reach this address; give all ranks"));
  options.key_file = keys.file();
  EXPECT_EQ(thrown().first, JobErrorCode::kTimeout);
  options.insecure = true;
  EXPECT_THAT(thrown().second, HasSubstr("insecure: this group has a key; leave one of them out"));
  options.key_file = {};
  EXPECT_EQ(thrown().first, JobErrorCode::kTimeout);
  options.insecure = false;
  options.listen = "127.0.0.1:0";
  options.addresses[1] = "192.0.2.1:7600";
  EXPECT_THAT(thrown().second, HasSubstr("addresses: 192.0.2.1:7600: other machines may reach this address"));
  options.exchange = [all = std::exchange(options.addresses, {})](const std::string&) { return all; };
  EXPECT_THAT(thrown().second, HasSubstr("addresses: 192.0.2.1:7600: other machines may reach this address"));
}

TEST(PeersOverTcp, AnAddressOfEveryHostIsNoAddressOfARank) {
  TcpOptions options{.listen = "0.0.0.0:0", .insecure = true};
  options.exchange = [](const std::string& own) { return std::vector<std::string>{own, "127.0.0.1:1"}; };
  const auto [code, sentence] = thrown_by([&] { Communicator::over_tcp(options); });
  EXPECT_EQ(code, JobErrorCode::kInvalidArgument);
  EXPECT_THAT(sentence, HasSubstr("every address of its machine"));
}

TEST(PeersOverTcp, AKeyFileThatIsNoneIsRefusedBeforeTheRankListens) {
  const KeyFolder keys;
  const auto sentence_of = [](const std::string& file) {
    return thrown_by([&] {
             Communicator::over_tcp({.addresses = {"127.0.0.1:1"}, .listen = "127.0.0.1:0", .key_file = file});
           })
        .second;
  };
  EXPECT_THAT(sentence_of(keys.file("none.key")), HasSubstr("key_file: "));
  EXPECT_THAT(sentence_of(keys.file("job.pub")), HasSubstr("key_file: "));
  std::filesystem::permissions(keys.file(), std::filesystem::perms::others_read, std::filesystem::perm_options::add);
  EXPECT_THAT(sentence_of(keys.file()), HasSubstr("chmod"));
}

TEST(PeersOverTcp, ARankThatIsMissingIsNamed) {
  const auto [code, sentence] =
      thrown_by([] { Communicator::over_tcp({.addresses = {"127.0.0.1:0", "127.0.0.1:1"}, .listen = "127.0.0.1:0"}); });
  EXPECT_EQ(code, JobErrorCode::kInvalidArgument);
  EXPECT_THAT(sentence, HasSubstr("port 0 cannot be reached"));
  const auto [late, missing] = thrown_by([] {
    Communicator::over_tcp(
        {.addresses = {"127.0.0.1:1", "127.0.0.1:2"}, .listen = "127.0.0.1:0", .connect_max = milliseconds(20)});
  });
  EXPECT_EQ(late, JobErrorCode::kTimeout);
  EXPECT_THAT(missing, HasSubstr("rank 1 has not connected"));
}

TEST(PeersOverTcp, TheTimeOfTheExchangeIsPartOfTheLimit) {
  TcpOptions options{.listen = "127.0.0.1:0", .connect_max = milliseconds(1)};
  options.exchange = [](const std::string& own) -> std::vector<std::string> {
    const auto began = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - began < milliseconds(2)) ::poll(nullptr, 0, 1);
    return {own, "127.0.0.1:1"};
  };
  options.give_up = [] { return true; };  // asked where time is left
  EXPECT_EQ(thrown_by([&] { Communicator::over_tcp(options); }).first, JobErrorCode::kTimeout);
}

TEST(PeersOverTcp, OptionsThatContradictEachOtherAreRefused) {
  const auto sentence_of = [](const TcpOptions& options) {
    return thrown_by([&] { Communicator::over_tcp(options); }).second;
  };
  const auto none = [](const std::string&) { return std::vector<std::string>(); };
  EXPECT_THAT(sentence_of({}), HasSubstr("rank 0 of 0 addresses"));
  EXPECT_THAT(sentence_of({.rank = 2, .addresses = {"a:1", "b:1"}}), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(sentence_of({.addresses = {"a:1"}, .exchange = none}), HasSubstr("one of both"));
  EXPECT_THAT(sentence_of({.exchange = none}), HasSubstr("needs TcpOptions::listen"));
  EXPECT_THAT(sentence_of({.listen = "127.0.0.1:0", .exchange = none}), HasSubstr("rank 0 of 0"));
  EXPECT_THROW(Communicator::over_tcp({.listen = "127.0.0.1:0",
                                       .exchange = [](const std::string&) -> std::vector<std::string> {
                                         throw std::out_of_range("none");
                                       }}),
               std::out_of_range);
}

}  // namespace
}  // namespace millrace::peers::testing
