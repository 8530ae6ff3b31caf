#include "worker/doctor/cluster_reach.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/base/descriptor.h"
#include "monitoring/http/http_client.h"
#include "monitoring/http/http_sockets.h"
#include "monitoring/http/path_probe.h"
#include "monitoring/status/status_json.h"
#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"
#include "protocol/address/stream_sockets.h"
#include "worker/cluster_status/cluster_table.h"
#include "worker/program/json_text.h"
#include "worker/timeline/process_trace.h"

namespace millrace::doctor {
namespace {

constexpr int kHttpOk = 200;
constexpr int kHttpBusy = 503;
constexpr int kHttpUnauthorized = 401;
constexpr int kClockRequests = 4;
constexpr int kTransfers = 4;
/// A shard that has just started has not heard the others yet.
constexpr TimeNs kNeighbourTime = 2 * kNsPerS;
constexpr int kNeighbourLookEveryMs = 100;
/// The port of the discard service: on most hosts nothing has it.
constexpr uint16_t kDiscardPort = 9;
constexpr int kDatagramWaitMs = 500;
/// Linux refuses one datagram a second of each sender, beyond the first ones (icmp_ratelimit).
constexpr int kRefusalEveryMs = 1'200;
constexpr size_t kSmallDatagram = 1;
constexpr size_t kPacketBytes = 1'500;
constexpr uint32_t kHeadsIpv4 = 28;  ///< of IP and UDP
constexpr uint32_t kHeadsIpv6 = 48;

int64_t unix_now_ns() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

void look_up_names(const ShardPlace& place, ShardFacts& facts) {
  for (const std::string& address : {place.address, place.http}) {
    const auto at = protocol::parse_host_port(address);
    if (!at && !address.empty()) facts.names.push_back({address, std::unexpected(at.error())});
    if (!at || protocol::is_numeric_host(at->host)) continue;
    if (std::ranges::find(facts.names, at->host, &NameFacts::host) != facts.names.end()) continue;
    const auto found = protocol::look_up_host(at->host);
    NameFacts name{at->host, std::vector<std::string>()};
    if (found) {
      for (const protocol::HostAddress& one : *found) name.addresses->push_back(one.text);
    } else {
      name.addresses = std::unexpected(found.error());
    }
    facts.names.push_back(std::move(name));
  }
}

/// Returns whether a lookup of the address's host has failed.
bool is_unknown(const ShardFacts& facts, const std::string& address) {
  const auto at = protocol::parse_host_port(address);
  if (!at) return true;
  const auto name = std::ranges::find(facts.names, at->host, &NameFacts::host);
  return name != facts.names.end() && !name->addresses;
}

/// Returns the address of the peer as a number with its port; empty: it is not known.
std::string numeric_peer(const Descriptor& stream) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::getpeername(stream.number(), std::bit_cast<sockaddr*>(&peer), &length) != 0) return "";
  if (peer.ss_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, &peer, sizeof ipv6);
    if (ipv6.sin6_scope_id != 0) return "";  // a number alone would not name the interface
    ::inet_ntop(AF_INET6, &ipv6.sin6_addr, text.data(), text.size());
    return protocol::host_port_text(text.data(), ntohs(ipv6.sin6_port));
  }
  sockaddr_in ipv4;
  std::memcpy(&ipv4, &peer, sizeof ipv4);
  ::inet_ntop(AF_INET, &ipv4.sin_addr, text.data(), text.size());
  return protocol::host_port_text(text.data(), ntohs(ipv4.sin_port));
}

/// Returns the number of the address that accepts, so that later steps look up no name and try no dead address. Where
/// none accepts, or the number does not name it: the address.
std::string numeric_address(const std::string& address, int timeout_ms) {
  const auto at = protocol::parse_host_port(address);
  if (!at || protocol::is_numeric_host(at->host)) return address;
  const auto stream = monitoring::connect_to_host(*at, timeout_ms);
  const std::string number = stream ? numeric_peer(*stream) : "";
  return number.empty() ? address : number;
}

/// A connected datagram socket to a closed port of the peer of a TCP connection. Its datagrams are not cut on the way.
Descriptor open_probe(const Descriptor& stream) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  if (::getpeername(stream.number(), std::bit_cast<sockaddr*>(&peer), &length) != 0) return {};
  Descriptor probe(::socket(peer.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool is_ipv6 = peer.ss_family == AF_INET6;
  const int whole = IP_PMTUDISC_DO;
  static_assert(IP_PMTUDISC_DO == IPV6_PMTUDISC_DO);
  const int level = is_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP;
  if (!probe ||
      ::setsockopt(probe.number(), level, is_ipv6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &whole, sizeof whole) != 0)
    return {};
  // Both families have the port at one place.
  sockaddr_in port_at;
  std::memcpy(&port_at, &peer, sizeof port_at);
  port_at.sin_port = htons(kDiscardPort);
  std::memcpy(&peer, &port_at, sizeof port_at);
  if (::connect(probe.number(), std::bit_cast<const sockaddr*>(&peer), length) != 0) return {};
  return probe;
}

DatagramOutcome datagram_outcome(int error) {
  if (error == EMSGSIZE) return DatagramOutcome::kTooLarge;
  return error == ECONNREFUSED ? DatagramOutcome::kArrived : DatagramOutcome::kSilent;
}

/// Sends one datagram, and waits for the host's or a router's refusal of it.
DatagramOutcome send_datagram(const Descriptor& probe, size_t bytes) {
  const std::array<char, kPacketBytes> zeros{};
  if (::send(probe.number(), zeros.data(), bytes, MSG_NOSIGNAL) < 0) return datagram_outcome(errno);
  pollfd answer{probe.number(), POLLIN, 0};
  if (::poll(&answer, 1, kDatagramWaitMs) <= 0) return DatagramOutcome::kSilent;
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(probe.number(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return DatagramOutcome::kSilent;
  return datagram_outcome(error);
}

std::optional<MtuFacts> probe_mtu(const Descriptor& stream) {
  const Descriptor probe = open_probe(stream);
  if (!probe) return std::nullopt;
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  const bool is_ipv6 =
      ::getsockname(probe.number(), std::bit_cast<sockaddr*>(&own), &length) == 0 && own.ss_family == AF_INET6;
  MtuFacts facts;
  facts.head_bytes = is_ipv6 ? kHeadsIpv6 : kHeadsIpv4;
  const size_t large = kPacketBytes - facts.head_bytes;
  facts.small = send_datagram(probe, kSmallDatagram);
  facts.large = send_datagram(probe, large);
  if (facts.small == DatagramOutcome::kArrived && facts.large == DatagramOutcome::kSilent) {
    ::poll(nullptr, 0, kRefusalEveryMs);
    facts.large = send_datagram(probe, large);
  }
  // A late answer to the small one must not count for the large one.
  if (facts.small == DatagramOutcome::kSilent && facts.large == DatagramOutcome::kArrived)
    facts.large = DatagramOutcome::kSilent;
  int mtu = 0;
  length = sizeof mtu;
  const int level = is_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP;
  if (::getsockopt(probe.number(), level, is_ipv6 ? IPV6_MTU : IP_MTU, &mtu, &length) == 0 && mtu > 0)
    facts.known_mtu = static_cast<uint32_t>(mtu);
  return facts;
}

/// Reads the greeting of the port's transport [ZMTP 3.1, "Greeting"], as far as its mechanism.
///
/// The port sends the rest of its own greeting for our version, and waits for the rest of ours. It closes nothing
/// before we do. ZeroMQ's own connection would race: a port that refuses its mechanism may end it unread.
PortMechanism read_mechanism(const Descriptor& stream, int timeout_ms) {
  constexpr std::array<unsigned char, 11> kGreetingBegin = {0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3};
  constexpr size_t kMechanismAt = 12;
  constexpr size_t kMechanismBytes = 20;
  std::array<char, 64> greeting{};
  if (::send(stream.number(), kGreetingBegin.data(), kGreetingBegin.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(kGreetingBegin.size()))
    return PortMechanism::kOther;
  const TimeNs deadline = monotonic_now_ns() + TimeNs{timeout_ms} * kNsPerMs;
  for (size_t bytes = 0; bytes < greeting.size();) {
    const TimeNs left = deadline - monotonic_now_ns();
    pollfd readable{stream.number(), POLLIN, 0};
    if (left <= 0 || ::poll(&readable, 1, static_cast<int>(left / kNsPerMs + 1)) < 0) return PortMechanism::kOther;
    const ssize_t got = ::recv(stream.number(), greeting.data() + bytes, greeting.size() - bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0 || greeting[0] != '\xFF') return PortMechanism::kOther;
    bytes += static_cast<size_t>(got);
  }
  if (greeting[9] != '\x7F') return PortMechanism::kOther;
  std::string_view mechanism(greeting.data() + kMechanismAt, kMechanismBytes);
  mechanism = mechanism.substr(0, mechanism.find('\0'));
  if (mechanism == "CURVE") return PortMechanism::kCurve;
  return mechanism == "NULL" ? PortMechanism::kNull : PortMechanism::kOther;
}

/// Proves this process's key to the port, and the port its own.
///
/// number  the address that accepted, so that no other one is tried; empty: not known.
void shake_hands(const std::string& number, const std::string& address, const ReachOptions& options,
                 HandshakeFacts& facts) {
  protocol::TransportOptions transport;
  transport.linger_ms = 0;
  transport.keys = options.keys;
  protocol::TransportContext context(transport);
  const auto connection = protocol::Connection::connect(context, "tcp://" + (number.empty() ? address : number));
  if (!connection) {
    facts.trouble = connection.error().message;
    return;
  }
  protocol::Poller poller;
  poller.add(**connection);
  const TimeNs deadline = monotonic_now_ns() + TimeNs{options.timeout_ms} * kNsPerMs;
  auto state = (*connection)->state();
  for (TimeNs left = deadline - monotonic_now_ns(); state == protocol::ConnectionState::kConnecting && left > 0;
       left = deadline - monotonic_now_ns()) {
    poller.wait(static_cast<int>(left / kNsPerMs + 1));
    state = (*connection)->state();
  }
  facts.done = state == protocol::ConnectionState::kConnected;
  if (facts.done) return;
  facts.trouble = (*connection)->key_trouble();
  if (facts.trouble.empty()) facts.trouble = (*connection)->trouble();
  if (facts.trouble.empty()) facts.trouble = "it did not end the handshake of the keys";
}

Result<StatusReport> fetch_report(const std::string& http, const ReachOptions& options) {
  const auto reply = monitoring::http_get(http, "/status", options.timeout_ms, options.caller);
  if (!reply) return std::unexpected(reply.error());
  if (reply->status == kHttpUnauthorized) {
    const bool has_token = options.caller != nullptr && !options.caller->token().empty();
    return fail(has_token ? ErrorCode::kUnauthenticated : ErrorCode::kUnsupported,
                fmt::format("{} {}", http, has_token ? "has another token" : "asks for a token"));
  }
  if (reply->status == kHttpBusy) return fail(ErrorCode::kUnavailable, fmt::format("{} is too busy to answer", http));
  const auto json = program::parse_json(reply->body);
  if (reply->status != kHttpOk || !json || !json->is_object())
    return fail(ErrorCode::kMalformed,
                fmt::format("{} answers /status with {}, no status of Millrace", http, reply->status));
  auto report = monitoring::read_status(*json);
  if (!report)
    return fail(ErrorCode::kUnsupported, fmt::format("{} is no shard's port: a worker's, spare's or switch's", http));
  return std::move(*report);
}

bool hears_all(const StatusReport& report) { return std::ranges::all_of(report.peers, &PeerShardStatus::heard); }

Result<StatusReport> fetch_settled_report(const std::string& http, const ReachOptions& options) {
  Result<StatusReport> report = fetch_report(http, options);
  const TimeNs deadline = monotonic_now_ns() + kNeighbourTime;
  while (report && !hears_all(*report) && monotonic_now_ns() < deadline) {
    ::poll(nullptr, 0, kNeighbourLookEveryMs);
    report = fetch_report(http, options);
  }
  return report;
}

/// Aligns the shard's wall clock by its answers of /trace, which records nothing for such a request.
void align_clock(const std::string& http, const ReachOptions& options, ShardFacts& facts) {
  std::string path = "/trace";
  const TimeNs deadline = monotonic_now_ns() + TimeNs{options.timeout_ms} * kNsPerMs;
  for (int request = 0; request < kClockRequests && (request == 0 || monotonic_now_ns() < deadline); ++request) {
    const int64_t asked_unix = unix_now_ns();
    const TimeNs asked = monotonic_now_ns();
    const auto reply = monitoring::http_get(http, path, options.timeout_ms, options.caller);
    const TimeNs took = monotonic_now_ns() - asked;
    if (!reply || reply->status != kHttpOk) {
      facts.clock_trouble = reply ? fmt::format("it answers /trace with {}", reply->status) : reply.error().message;
      return;
    }
    const auto answer = timeline::read_trace_answer(reply->body);
    if (!answer || answer->unix_ns == 0) {
      facts.clock_trouble = answer ? "its /trace has no wall clock" : answer.error().message;
      return;
    }
    facts.wall_clock.add(asked_unix, asked_unix + took, answer->unix_ns);
    path = "/trace?after=" + answer->next;
  }
}

}  // namespace

TableFacts read_table_facts(const protocol::TableFlags& flags, const cluster_status::Fetch& fetch) {
  TableFacts facts{.location = flags.location};
  const auto table = cluster_status::open_existing_table(flags);
  auto cluster = table ? (*table)->read_cluster() : std::unexpected(table.error());
  if (cluster) {
    // The first one opens connections and logs in, as no server does again.
    const TimeNs begin = monotonic_now_ns();
    cluster = (*table)->read_cluster();
    facts.read_time = monotonic_now_ns() - begin;
  }
  if (!cluster) {
    facts.trouble = cluster.error().message;
    return facts;
  }
  std::vector<cluster_status::ShardHttp> ports = cluster_status::http_ports_of(*cluster, fetch);
  for (const protocol::ClusterView::Shard& one : cluster->shards) {
    cluster_status::ShardHttp& port = ports[facts.shards.size()];
    TableFacts::Shard shard{.number = static_cast<uint32_t>(facts.shards.size()),
                            .state = std::string(cluster_status::shard_state(one)),
                            .address = std::string(protocol::without_tcp(one.entry.address)),
                            .http = std::move(port.address),
                            .http_trouble = std::move(port.trouble)};
    facts.shards.push_back(std::move(shard));
  }
  return facts;
}

void ShardCollector::connect_to_port(const std::string& address, ShardFacts& facts) {
  const auto at = protocol::parse_host_port(address);
  if (!at) {
    facts.connect = std::unexpected(at.error());
    return;
  }
  const auto stream = monitoring::connect_to_host(*at, options_.timeout_ms);
  if (!stream) {
    facts.connect = std::unexpected(stream.error());
    return;
  }
  facts.connect = ConnectFacts{monitoring::handshake_round_trip(*stream)};
  const auto known = mtus_.find(at->host);
  facts.mtu = known == mtus_.end() ? probe_mtu(*stream) : known->second;
  if (facts.mtu) mtus_[at->host] = *facts.mtu;
  facts.handshake = HandshakeFacts{.mechanism = read_mechanism(*stream, options_.timeout_ms)};
  if (options_.keys && facts.handshake->mechanism == PortMechanism::kCurve)
    shake_hands(numeric_peer(*stream), address, options_, *facts.handshake);
}

ShardFacts ShardCollector::collect(const ShardPlace& place) {
  ShardFacts facts{.place = place};
  look_up_names(place, facts);
  if (!place.address.empty() && !is_unknown(facts, place.address)) connect_to_port(place.address, facts);
  if (place.http.empty() || is_unknown(facts, place.http)) return facts;
  // A certificate proves the name, and not the number.
  const std::string http = options_.caller == nullptr ? numeric_address(place.http, options_.timeout_ms) : place.http;
  facts.status = fetch_settled_report(http, options_);
  if (!*facts.status) return facts;
  align_clock(http, options_, facts);
  facts.transfer = monitoring::fetch_probe(http, kTransfers, options_.timeout_ms, options_.caller);
  return facts;
}

}  // namespace millrace::doctor
