#include "server/process/shard_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace millrace::server {

ShardLinks::ShardLinks(uint32_t shard_count, protocol::TransportContext& context, protocol::Poller& poller,
                       ProcessLog& log)
    : context_(context), poller_(poller), log_(log), links_(shard_count) {}

bool ShardLinks::make(Link& link, TimeNs now) {
  link.make_at = now + kAgainAfter;  // unless it is made
  Status made;
  if (link.connection) {
    made = link.connection->reconnect();
  } else if (auto connection = protocol::Connection::connect(context_, link.address); connection) {
    poller_.add(**connection);
    link.connection = std::move(*connection);
  } else {
    made = std::unexpected(connection.error());
  }
  if (!made) {
    if (std::exchange(link.said, true)) return false;
    log_.write(Severity::kError, fmt::format("shard {}: {}", &link - links_.data(), made.error().message), now);
    return false;
  }
  link.make_at.reset();
  link.hello_lost = false;
  link.said = false;
  return true;
}

void ShardLinks::connect(ConnectShard to, TimeNs now) {
  Link& link = links_.at(to.shard);
  if (link.connection) poller_.remove(*link.connection);
  link.connection.reset();
  link.address = std::move(to.address);
  link.said = false;
  make(link, now);
}

bool ShardLinks::send(const SendToShard& send) {
  Link& link = links_.at(send.shard);
  const bool hello = std::holds_alternative<protocol::ShardHello>(send.message.body);
  if (hello) link.hello_lost = true;  // unless it goes out
  if (!link.connection || link.connection->send(send.message) != protocol::SendResult::kSent) return false;
  if (hello) link.hello_lost = false;
  return true;
}

std::optional<protocol::Received> ShardLinks::receive(uint32_t shard) {
  Link& link = links_.at(shard);
  return link.connection ? link.connection->receive() : std::nullopt;
}

std::optional<uint32_t> ShardLinks::watch(TimeNs now) {
  for (Link& link : links_) {
    if (link.address.empty()) continue;
    const bool broken = link.connection && link.connection->state() == protocol::ConnectionState::kDisconnected;
    if (!link.make_at && (broken || link.hello_lost)) link.make_at = now + kAgainAfter;
    if (!link.make_at || *link.make_at > now) continue;
    if (make(link, now)) return static_cast<uint32_t>(&link - links_.data());
  }
  return std::nullopt;
}

std::optional<TimeNs> ShardLinks::deadline() const {
  std::optional<TimeNs> first;
  for (const Link& link : links_) {
    if (link.make_at && (!first || *link.make_at < *first)) first = link.make_at;
  }
  return first;
}

}  // namespace millrace::server
