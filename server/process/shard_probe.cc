#include "server/process/shard_probe.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"

namespace millrace::server {

ShardProbe::~ShardProbe() {
  for (const Target& target : targets_) {
    if (target.fd >= 0) ::close(target.fd);
  }
}

std::vector<bool> ShardProbe::look(const std::vector<protocol::ClusterView::Shard>& shards, TimeNs now) {
  for (size_t shard = shards.size(); shard < targets_.size(); ++shard) {
    if (targets_[shard].fd >= 0) ::close(targets_[shard].fd);
  }
  targets_.resize(shards.size());
  std::vector<bool> refuses;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    Target& target = targets_[shard];
    retarget(target, shards[shard].entry);
    go_on(target, now);
    refuses.push_back(target.refuses);
  }
  return refuses;
}

/// Begins anew with the address of another start.
void ShardProbe::retarget(Target& target, const protocol::ShardEntry& entry) {
  if (target.incarnation == entry.incarnation && target.address == entry.address) return;
  if (target.fd >= 0) ::close(target.fd);
  target = {};
  target.address = entry.address;
  target.incarnation = entry.incarnation;
  const auto at = protocol::parse_tcp_address(entry.address);
  if (!at) return;
  const auto hosts = protocol::look_up_host(at->host);
  if (!hosts || hosts->empty()) return;
  target.host = hosts->front().text;
  target.port = at->port;
}

void ShardProbe::begin(Target& target, TimeNs now) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(target.host.c_str(), std::to_string(target.port).c_str(), &hints, &found) != 0) return;
  target.begun = now;
  target.fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int connected = target.fd < 0 ? -1 : ::connect(target.fd, found->ai_addr, found->ai_addrlen);
  const int error = connected == 0 ? 0 : errno;
  ::freeaddrinfo(found);
  if (error != EINPROGRESS) end(target, error, now);
}

void ShardProbe::end(Target& target, int error, TimeNs now) {
  if (target.fd >= 0) ::close(std::exchange(target.fd, -1));
  target.next = now + kEvery;
  target.has_accepted = target.has_accepted || error == 0;
  target.refuses = target.has_accepted && error == ECONNREFUSED;
}

void ShardProbe::go_on(Target& target, TimeNs now) {
  if (target.host.empty()) return;
  if (target.fd < 0) {
    if (now >= target.next) begin(target, now);
    return;
  }
  pollfd ready{target.fd, POLLOUT, 0};
  if (::poll(&ready, 1, 0) > 0) {
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(target.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    return end(target, error, now);
  }
  if (now - target.begun > kLimit) end(target, ETIMEDOUT, now);
}

}  // namespace millrace::server
