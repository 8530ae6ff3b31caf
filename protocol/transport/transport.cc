#include "protocol/transport/transport.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/address/host_port.h"
#include "protocol/transport/key_gate.h"
#include "protocol/transport/socket.h"

namespace millrace::protocol {
namespace {

constexpr int kBacklog = 1024;
/// Time in which a peer that connected must end its handshake: a connection that never speaks holds a descriptor.
constexpr int kHandshakeMs = 10'000;
/// Where a name has several addresses, one that does not answer must leave time for the others.
constexpr int kOneAddressConnectMs = 2'000;
constexpr int kOneAddressHandshakeMs = 5'000;
/// A free port of a name's first address may be taken on the second one: another one is asked for.
constexpr int kFreePortTries = 8;

/// Does the same as each thread of ZeroMQ at its start, where a failure would end the process.
Status scheduling_can_be_set() {
  int policy = 0;
  sched_param parameters{};
  int refused = ::pthread_getschedparam(::pthread_self(), &policy, &parameters);
  if (refused == 0) refused = ::pthread_setschedparam(::pthread_self(), policy, &parameters);
  if (refused == 0) return {};
  return fail(ErrorCode::kUnsupported,
              std::string("this process may not set the scheduling policy that it has (sched_setscheduler(2): ") +
                  std::strerror(refused) +
                  "), and ZeroMQ does that in each of its threads: a filter of system calls refuses it; allow "
                  "sched_setscheduler and sched_setparam there (systemd: a later SystemCallFilter=sched_setscheduler "
                  "sched_setparam; containers: the seccomp profile)");
}

std::string monitor_address() {
  static std::atomic<uint64_t> next{0};
  return "inproc://millrace-monitor-" + std::to_string(next.fetch_add(1));
}

/// Turns "[::ffff:a.b.c.d]", an IPv4 address bound by an IPv6-enabled socket, into a.b.c.d, as people and flags write
/// it.
std::string plain_ipv4(std::string address) {
  constexpr std::string_view kMapped = "[::ffff:";
  const size_t begin = address.find(kMapped);
  const size_t end = address.find(']');
  if (begin == std::string::npos || end == std::string::npos) return address;
  const std::string host = address.substr(begin + kMapped.size(), end - begin - kMapped.size());
  return address.substr(0, begin) + host + address.substr(end + 1);
}

}  // namespace

struct TransportContext::State {
  TransportOptions options;
  void* context = nullptr;
  std::optional<Status> threads_can_start;  ///< once asked
};

TransportContext::TransportContext(TransportOptions options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  state_->context = zmq_ctx_new();
  MILLRACE_CHECK(state_->context != nullptr);
  zmq_ctx_set(state_->context, ZMQ_IO_THREADS, static_cast<int>(state_->options.io_threads));
  zmq_ctx_set(state_->context, ZMQ_IPV6, 1);
}

TransportContext::~TransportContext() {
  while (zmq_ctx_term(state_->context) != 0 && errno == EINTR) {
  }
}

const TransportOptions& TransportContext::options() const { return state_->options; }
void* TransportContext::handle() const { return state_->context; }

const Status& TransportContext::threads_can_start() {
  if (!state_->threads_can_start) state_->threads_can_start = scheduling_can_be_set();
  return *state_->threads_can_start;
}

namespace {

Status listen_at(Socket& socket, const std::string& address) {
  if (zmq_bind(socket.handle(), address.c_str()) == 0) return {};
  const int error = zmq_errno();
  if (error == EADDRINUSE) {
    return fail(ErrorCode::kConflict,
                address + " is in use: stop what listens there, or choose another port (port 0 takes a free one)");
  }
  const bool elsewhere = error == EADDRNOTAVAIL || error == ENODEV || error == EAFNOSUPPORT;
  return fail(elsewhere ? ErrorCode::kUnavailable : ErrorCode::kIo,
              "cannot listen on " + address + ": " + zmq_strerror(error) +
                  "; give an address of this machine as tcp://HOST:PORT");
}

std::string listening_at(Socket& socket) {
  std::array<char, 256> bound{};
  size_t length = bound.size();
  MILLRACE_CHECK(zmq_getsockopt(socket.handle(), ZMQ_LAST_ENDPOINT, bound.data(), &length) == 0);
  return bound.data();
}

std::string bindable(std::string address) {
  if (address.ends_with(":0")) address.replace(address.size() - 1, 1, "*");
  return address;
}

}  // namespace

/// Listens on each address of a name, all by one port.
Status Listener::bind_host(const HostPort& wanted, const HostResolver& resolver) {
  const auto addresses = resolver(wanted.host);
  if (!addresses) {
    return fail(ErrorCode::kIo,
                "cannot listen on " + tcp_address(wanted.host, wanted.port) + ": " + addresses.error().message);
  }
  for (int tries = 1;; ++tries) {
    std::vector<std::string> bound;
    Status last;
    uint16_t port = wanted.port;
    for (const HostAddress& address : *addresses) {
      last = listen_at(*socket_, bindable(tcp_address(address.text, port)));
      if (!last && last.error().code == ErrorCode::kUnavailable) continue;
      if (!last) break;
      bound.push_back(listening_at(*socket_));
      port = parse_tcp_address(bound.back()).value_or(wanted).port;
    }
    const bool elsewhere_only = last || last.error().code == ErrorCode::kUnavailable;
    if (elsewhere_only && !bound.empty()) {
      address_ = bound.size() == 1 ? plain_ipv4(bound.front()) : tcp_address(wanted.host, port);
      return {};
    }
    const bool another = wanted.port == 0 && tries < kFreePortTries && last.error().code == ErrorCode::kConflict;
    if (!another) return fail(ErrorCode::kIo, last.error().message);
    for (const std::string& one : bound) zmq_unbind(socket_->handle(), one.c_str());
  }
}

Result<std::unique_ptr<Listener>> Listener::bind(TransportContext& context, const std::string& address) {
  std::unique_ptr<Listener> listener(new Listener);
  listener->limits_ = context.options().limits;
  auto socket = Socket::open(context, ZMQ_ROUTER);
  if (!socket) return std::unexpected(socket.error());
  listener->socket_ = std::move(*socket);
  listener->socket_->set(ZMQ_ROUTER_MANDATORY, 1);
  listener->socket_->set(ZMQ_BACKLOG, kBacklog);
  listener->socket_->set(ZMQ_HANDSHAKE_IVL, kHandshakeMs);
  if (const auto& keys = context.options().keys) {
    if (const Status listens = listener->socket_->listen_with(*keys); !listens) return std::unexpected(listens.error());
  }
  const Result<HostPort> host = parse_tcp_address(address);
  if (host && host->host != "*" && !is_numeric_host(host->host)) {
    if (const Status bound = listener->bind_host(*host, context.options().resolver); !bound)
      return std::unexpected(bound.error());
    return listener;
  }
  if (const Status bound = listen_at(*listener->socket_, bindable(address)); !bound)
    return fail(ErrorCode::kIo, bound.error().message);
  listener->address_ = plain_ipv4(listening_at(*listener->socket_));
  return listener;
}

Listener::~Listener() = default;

SendResult Listener::send(const PeerId& to, const Message& message) {
  return send_frames(to, SharedBytes::from(encode_envelope(message)), message.payload);
}

SendResult Listener::send_frames(const PeerId& to, const SharedBytes& envelope, const SharedBytes& payload) {
  return socket_->send_all(&to, envelope, payload);
}

uint64_t Listener::queued_bytes(const PeerId& to) const { return socket_->queued_bytes(to); }

std::optional<Received> Listener::receive() { return socket_->receive_message(Socket::Routing::kRouted, limits_); }

std::optional<ReceivedFrames> Listener::receive_frames() {
  auto all = socket_->receive_all(Socket::Routing::kRouted);
  if (!all) return std::nullopt;
  return std::move(all->frames);
}

Result<std::unique_ptr<Connection>> Connection::connect(TransportContext& context, const std::string& address) {
  std::unique_ptr<Connection> connection(new Connection);
  connection->context_ = &context;
  connection->address_ = address;
  connection->limits_ = context.options().limits;
  const Result<HostPort> host = parse_tcp_address(address);
  if (host && !is_numeric_host(host->host)) connection->name_ = *host;
  if (auto status = connection->reconnect(); !status) return std::unexpected(status.error());
  return connection;
}

Connection::~Connection() { stop_monitor(); }

/// The monitor's sender is closed with the socket; close it first so that the pair has a living end while it stops.
void Connection::stop_monitor() {
  if (socket_) zmq_socket_monitor(socket_->handle(), nullptr, 0);
}

void Connection::close() {
  stop_monitor();
  if (socket_) socket_->set(ZMQ_LINGER, 0);
  monitor_.reset();
  socket_.reset();
}

Status Connection::reconnect() {
  if (const Status opened = open_sockets(); !opened) return opened;
  state_ = ConnectionState::kConnecting;
  accepted_ = false;
  counter_ = {};
  counts_ = {};
  handed_ = 0;
  trouble_.clear();
  key_trouble_.clear();
  unsent_.clear();
  if (!name_) return connect_to(address_);
  if (!lookup_) connect_to_host();  // else its answer connects the new socket
  return {};
}

/// Opens the sockets. Takes all memory and descriptors first: without them the connection stays as it was.
Status Connection::open_sockets() {
  const std::string events = monitor_address();
  auto socket = Socket::open(*context_, ZMQ_DEALER);
  if (!socket) return std::unexpected(socket.error());
  auto monitor = Socket::open(*context_, ZMQ_PAIR);
  if (!monitor) return std::unexpected(monitor.error());
  (*socket)->set(ZMQ_RECONNECT_IVL, -1);
  if (const auto& keys = context_->options().keys) {
    if (const Status connects = (*socket)->connect_with(*keys); !connects) return connects;
  }
  constexpr int kWatched = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                           ZMQ_EVENT_CLOSED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                           ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  if (zmq_socket_monitor((*socket)->handle(), events.c_str(), kWatched) != 0) return Socket::not_opened();
  MILLRACE_CHECK(zmq_connect((*monitor)->handle(), events.c_str()) == 0, zmq_strerror(zmq_errno()));
  close();
  monitor_ = std::move(*monitor);
  socket_ = std::move(*socket);
  return {};
}

Status Connection::connect_to(const std::string& address) {
  if (zmq_connect(socket_->handle(), address.c_str()) == 0) return {};
  return fail(ErrorCode::kInvalidArgument, "cannot connect to '" + address + "': " + zmq_strerror(zmq_errno()) +
                                               "; give shard addresses as tcp://HOST:PORT");
}

/// Connects to the next address of the name, or begins to look it up.
void Connection::connect_to_host() {
  state_ = ConnectionState::kDisconnected;  // also where memory ends on the way: then the owner tries again
  const std::optional<std::string> next = rotation_.next();
  if (!next) {
    auto lookup = HostLookup::start(context_->options().resolver, name_->host);
    if (!lookup) return give_up(lookup.error());
    lookup_ = std::move(*lookup);
    state_ = ConnectionState::kConnecting;
    return;
  }
  if (rotation_.count() > 1) {
    socket_->set(ZMQ_CONNECT_TIMEOUT, kOneAddressConnectMs);
    socket_->set(ZMQ_HANDSHAKE_IVL, kOneAddressHandshakeMs);
  }
  if (const Status connected = connect_to(*next); !connected) return give_up(connected.error());
  for (const Unsent& one : unsent_) hand(one.envelope, one.payload);
  unsent_.clear();
  state_ = ConnectionState::kConnecting;
}

void Connection::take_lookup() {
  if (!lookup_) return;
  const auto found = lookup_->take();
  if (!found) return;
  lookup_.reset();
  state_ = ConnectionState::kDisconnected;
  if (!*found) return give_up(found->error());
  std::vector<std::string> addresses;
  for (const HostAddress& one : **found) addresses.push_back(tcp_address(one.text, name_->port));
  rotation_.take(std::move(addresses));
  connect_to_host();
}

void Connection::give_up(const Error& error) {
  trouble_ = error.message;
  unsent_.clear();
}

ConnectionState Connection::state() {
  take_lookup();
  while (const std::optional<Socket::Event> event = monitor_->receive_event()) {
    if (event->kind == 0) continue;
    if (event->kind == ZMQ_EVENT_CONNECTED) {
      accepted_ = true;
      counter_ = TcpCounter(static_cast<int>(event->value));  // the socket's descriptor
      continue;
    }
    note_handshake(event->kind, event->value);
    state_ =
        event->kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? ConnectionState::kConnected : ConnectionState::kDisconnected;
    if (state_ == ConnectionState::kConnected) rotation_.worked();
  }
  return state_;
}

/// Finds out whether a handshake failed because of the keys, and of whose.
void Connection::note_handshake(uint16_t event, uint32_t reason) {
  const auto& keys = context_->options().keys;
  if (!key_trouble_.empty() || state_ == ConnectionState::kConnected) return;
  if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
    key_trouble_ = keys ? "it does not accept this process's key " + key_digits(keys->own.public_key) +
                              ": that public key must be among its allowed keys"
                        : "it refuses processes without a key";
  } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL && reason == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
    key_trouble_ = keys ? "it takes no keys, and this process has one: give it keys, or this process none"
                        : "it wants a key, and this process has none: give it one, and the server's public key";
  } else if (event != ZMQ_EVENT_HANDSHAKE_SUCCEEDED && keys && accepted_) {
    key_trouble_ =
        "it ended the handshake of the keys: the server's public key that this process was given may be "
        "another server's, or it takes no keys";
  }
}

SendResult Connection::send(const Message& message) {
  return send_frames(SharedBytes::from(encode_envelope(message)), message.payload);
}

SendResult Connection::send_frames(const SharedBytes& envelope, const SharedBytes& payload) {
  return lookup_ ? keep_unsent(envelope, payload) : hand(envelope, payload);
}

SendResult Connection::hand(const SharedBytes& envelope, const SharedBytes& payload) {
  const SendResult result = socket_->send_all(nullptr, envelope, payload);
  if (result == SendResult::kSent) handed_ += envelope.bytes.size() + payload.bytes.size();
  return result;
}

uint64_t Connection::unsent_bytes() const {
  const auto counts = counter_.read();
  return counts && handed_ > counts->acknowledged ? handed_ - counts->acknowledged : 0;
}

Connection::Progress Connection::progress() {
  const auto counts = counter_.read();
  if (!counts) return {};
  const TcpCounter::Counts before = std::exchange(counts_, *counts);
  // The count has the handshake and the frames' heads, too: a queue only looks shorter.
  handed_ = std::max(handed_, counts->acknowledged);
  const bool queued = handed_ > counts->acknowledged + kSendingBytes;
  return {.received = counts->received - before.received, .sent = queued && counts->acknowledged > before.acknowledged};
}

SendResult Connection::keep_unsent(const SharedBytes& envelope, const SharedBytes& payload) {
  if (unsent_.size() >= context_->options().queue_messages_max) return SendResult::kWouldBlock;
  // Bytes without an owner are the caller's: it takes them back when this returns.
  const auto owned = [](const SharedBytes& bytes) {
    return bytes.owner ? bytes : SharedBytes::from(ByteBuffer(bytes.bytes.begin(), bytes.bytes.end()));
  };
  unsent_.push_back({owned(envelope), owned(payload)});
  return SendResult::kSent;
}

std::optional<Received> Connection::receive() { return socket_->receive_message(Socket::Routing::kNone, limits_); }

std::optional<ReceivedFrames> Connection::receive_frames() {
  auto all = socket_->receive_all(Socket::Routing::kNone);
  if (!all) return std::nullopt;
  return std::move(all->frames);
}

Waker::Waker() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { MILLRACE_CHECK(descriptor_ >= 0, errno); }
Waker::~Waker() { ::close(descriptor_); }

void Waker::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(descriptor_, &one, sizeof(one));
}

void Waker::clear() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(descriptor_, &count, sizeof(count));
}

bool Poller::wait(int timeout_ms) {
  std::vector<zmq_pollitem_t> items;
  items.reserve(listeners_.size() + 3 * connections_.size() + gates_.size() + descriptors_.size() + wakers_.size());
  for (auto* listener : listeners_) items.push_back({listener->socket().handle(), 0, ZMQ_POLLIN, 0});
  for (auto* connection : connections_) {
    items.push_back({connection->socket().handle(), 0, ZMQ_POLLIN, 0});
    items.push_back({connection->monitor().handle(), 0, ZMQ_POLLIN, 0});
  }
  for (const auto* gate : gates_) items.push_back({gate->handle(), 0, ZMQ_POLLIN, 0});
  for (const int descriptor : descriptors_) items.push_back({nullptr, descriptor, ZMQ_POLLIN, 0});
  for (const auto* connection : connections_) {
    if (const int lookup = connection->lookup_descriptor(); lookup >= 0)
      items.push_back({nullptr, lookup, ZMQ_POLLIN, 0});
  }
  for (auto* waker : wakers_) items.push_back({nullptr, waker->descriptor(), ZMQ_POLLIN, 0});
  const int ready = zmq_poll(items.data(), static_cast<int>(items.size()), timeout_ms);
  // Connection events are taken in at once: left unread they would end every later wait too. So are answers of lookups.
  for (size_t at = 0; at < connections_.size(); ++at) {
    const bool looks_up = connections_[at]->lookup_descriptor() >= 0;
    if (looks_up || items[listeners_.size() + 2 * at + 1].revents != 0) connections_[at]->state();
  }
  const size_t first_waker = items.size() - wakers_.size();
  for (size_t at = 0; at < wakers_.size(); ++at) {
    if (items[first_waker + at].revents != 0) wakers_[at]->clear();
  }
  return ready > 0;
}

bool Poller::wait_for_descriptors(int timeout_ms) {
  std::vector<pollfd> items;
  items.reserve(descriptors_.size() + wakers_.size());
  for (const int descriptor : descriptors_) items.push_back({descriptor, POLLIN, 0});
  for (auto* waker : wakers_) items.push_back({waker->descriptor(), POLLIN, 0});
  const int ready = ::poll(items.data(), items.size(), timeout_ms);
  for (size_t at = 0; at < wakers_.size(); ++at) {
    if (items[descriptors_.size() + at].revents != 0) wakers_[at]->clear();
  }
  return ready > 0;
}

}  // namespace millrace::protocol
