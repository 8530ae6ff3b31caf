#include "server/spare/shard_probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"

namespace millrace::server {

std::vector<bool> ShardProbe::look(const std::vector<protocol::ClusterView::Shard>& shards, TimeNs now) {
  targets_.resize(shards.size());
  std::vector<bool> refuses;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    Target& target = targets_[shard];
    retarget(target, shards[shard].entry);
    proceed(target, now);
    refuses.push_back(target.refuses);
  }
  return refuses;
}

/// Forgets an earlier start, and looks up the address of this one.
void ShardProbe::retarget(Target& target, const protocol::ShardEntry& entry) {
  if (target.incarnation == entry.incarnation && target.address == entry.address) return;
  target = {};
  target.address = entry.address;
  target.incarnation = entry.incarnation;
  const auto address = protocol::parse_tcp_address(entry.address);
  if (!address) return;
  const auto hosts = protocol::look_up_host(address->host);
  if (hosts && !hosts->empty()) target.at = protocol::socket_address(hosts->front(), address->port);
}

void ShardProbe::begin(Target& target, TimeNs now) {
  target.begun = now;
  target.socket = protocol::open_stream(target.at->family());
  if (target.socket && ::connect(target.socket.number(), target.at->any(), target.at->length) == 0)
    return end(target, 0, now);
  if (errno != EINPROGRESS) end(target, errno, now);
}

void ShardProbe::end(Target& target, int error, TimeNs now) {
  target.socket.close();
  target.next = now + kEvery;
  target.has_accepted = target.has_accepted || error == 0;
  target.refuses = target.has_accepted && error == ECONNREFUSED;
}

void ShardProbe::proceed(Target& target, TimeNs now) {
  if (!target.at) return;
  if (!target.socket) {
    if (now >= target.next) begin(target, now);
    return;
  }
  pollfd ready{target.socket.number(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) > 0) {
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(target.socket.number(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    return end(target, error, now);
  }
  if (now - target.begun > kLimit) end(target, ETIMEDOUT, now);
}

}  // namespace millrace::server
