#include "server/spare/shard_probe.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

namespace millrace::server {
namespace {

/// A socket that listens on a port of the loopback, a free one or a given one.
class Listens {
 public:
  explicit Listens(uint16_t port = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(::listen(fd_, 64), 0);
    socklen_t size = sizeof at;
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    port_ = ntohs(at.sin_port);
  }
  ~Listens() { ::close(fd_); }
  Listens(const Listens&) = delete;
  Listens& operator=(const Listens&) = delete;
  uint16_t port() const { return port_; }
  std::string address() const { return "tcp://127.0.0.1:" + std::to_string(port_); }

 private:
  int fd_;
  uint16_t port_ = 0;
};

using Shards = std::vector<protocol::ClusterView::Shard>;

Shards one_shard(const std::string& address, uint64_t incarnation = 1) {
  return {{{address, incarnation}, true, {}, {}}};
}

/// Looks at one shard for some probes; returns whether it refused connections at the end.
bool refuses(ShardProbe& probe, const Shards& shards, TimeNs& now) {
  bool last = false;
  for (int look = 0; look < 6; ++look, now += ShardProbe::kEvery) last = probe.look(shards, now).at(0);
  return last;
}

TEST(ShardProbe, AnAddressThatAcceptedAndRefusesIsOfAProcessThatIsGone) {
  ShardProbe probe;
  TimeNs now = 0;
  auto listens = std::make_unique<Listens>();
  const Shards shards = one_shard(listens->address());
  EXPECT_FALSE(refuses(probe, shards, now));
  const uint16_t port = listens->port();
  listens.reset();
  EXPECT_TRUE(refuses(probe, shards, now));
  const Listens again(port);
  EXPECT_FALSE(refuses(probe, shards, now));
}

TEST(ShardProbe, AnAddressThatNeverAcceptedSaysNothing) {
  ShardProbe probe;
  TimeNs now = 0;
  auto listens = std::make_unique<Listens>();
  const std::string address = listens->address();
  listens.reset();
  EXPECT_FALSE(refuses(probe, one_shard(address), now));
}

TEST(ShardProbe, ARefusalOfAnEarlierStartIsForgotten) {
  ShardProbe probe;
  TimeNs now = 0;
  auto listens = std::make_unique<Listens>();
  const std::string address = listens->address();
  EXPECT_FALSE(refuses(probe, one_shard(address), now));
  listens.reset();
  EXPECT_TRUE(refuses(probe, one_shard(address), now));
  EXPECT_FALSE(refuses(probe, one_shard(address, 2), now)) << "it may not listen yet";
}

TEST(ShardProbe, AddressesThatCannotBeProbedSayNothing) {
  ShardProbe probe;
  TimeNs now = 0;
  for (const char* address : {"", "ipc://x", "tcp://127.0.0.1"})
    EXPECT_FALSE(refuses(probe, one_shard(address), now)) << address;
  EXPECT_TRUE(probe.look({}, now).empty());
}

}  // namespace
}  // namespace millrace::server
