#include "monitoring/http/http_port.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "monitoring/catalog.h"
#include "monitoring/http/http_exchange.h"
#include "monitoring/http/request_threads.h"
#include "monitoring/http/status_page.h"
#include "monitoring/metrics.h"
#include "monitoring/open_files.h"
#include "protocol/address/host_port.h"
#include "protocol/address/stream_sockets.h"

namespace millrace::monitoring {
namespace {

constexpr size_t kAnswerThreads = 2;
/// The pause before the next connection is accepted, after one for which no descriptor was free.
constexpr TimeNs kAcceptPause = 100 * kNsPerMs;
/// The time for answers under way when the port stops.
constexpr TimeNs kStopTimeout = kNsPerS;

/// The pause after work that has broken off for lack of memory.
constexpr int kMemoryPauseMs = 10;
/// Answers that wait for their connections: those that may wait to be made, twice, since connections end meanwhile.
constexpr size_t kMadeMax = 2 * (HttpPort::kConnectionsMax + kAnswerThreads);

/// Runs `work`. False: it has broken off for lack of memory.
template <typename Work>
bool has_memory(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::length_error&) {
    return false;
  }
}

constexpr std::string_view kJobsPath = "/jobs/";

bool takes_time(const HttpHandlers& handlers, const HttpRequest& request) {
  return (request.method == "GET" || request.method == "HEAD") &&
         (request.path == "/metrics" || request.path == "/status" || handlers.more_json.contains(request.path) ||
          handlers.query_json.contains(request.path) || (request.path == "/trace" && handlers.trace_json));
}

/// REQUIRES: a path that takes_time().
HttpAnswer slow_answer(const HttpHandlers& handlers, const HttpRequest& request) {
  if (request.path == "/metrics")
    return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = handlers.metrics_text()};
  const auto more = handlers.more_json.find(request.path);
  if (more != handlers.more_json.end()) return {.type = "application/json", .body = more->second()};
  if (request.path == "/status") return {.type = "application/json", .body = handlers.status_json()};
  const auto asked = handlers.query_json.find(request.path);
  Result<std::string> said =
      asked != handlers.query_json.end() ? asked->second(request.query) : handlers.trace_json(request.query);
  if (said) return {.type = "application/json", .body = std::move(*said)};
  constexpr int kBadRequest = 400;
  constexpr int kUnavailable = 503;
  const bool clients_fault = said.error().code == ErrorCode::kInvalidArgument;
  return {.status = clients_fault ? kBadRequest : kUnavailable, .body = said.error().message + "\n"};
}

HttpAnswer quick_answer(const HttpHandlers& handlers, const HttpRequest& request) {
  constexpr int kNotFound = 404;
  constexpr int kNotAllowed = 405;
  constexpr int kUnavailable = 503;
  if (request.method != "GET" && request.method != "HEAD")
    return {.status = kNotAllowed, .body = "only GET and HEAD\n"};
  if (request.path == "/healthz") {
    const std::optional<std::string> reason = handlers.unhealthy();
    return reason ? HttpAnswer{.status = kUnavailable, .body = *reason + "\n"} : HttpAnswer{.body = "ok\n"};
  }
  if (request.path == "/readyz") {
    const std::optional<std::string> reason = handlers.unready ? handlers.unready() : handlers.unhealthy();
    return reason ? HttpAnswer{.status = kUnavailable, .body = *reason + "\n"} : HttpAnswer{.body = "ready\n"};
  }
  if (request.path == "/") {
    const PageOf of = handlers.more_json.contains("/cluster") ? PageOf::kCluster : PageOf::kProcess;
    return {.type = "text/html; charset=utf-8", .body = status_page(handlers.title, of)};
  }
  return {.status = kNotFound, .body = "no such page: /, /status, /metrics, /healthz, /readyz, /trace\n"};
}

HttpAnswer refusal_without_token(const HttpHandlers& /*handlers*/, const HttpRequest& /*request*/) {
  constexpr int kUnauthorized = 401;
  return {.status = kUnauthorized,
          .body = "this port asks for its token: send the header Authorization: Bearer TOKEN (--http-token-file)\n"};
}

HttpAnswer refusal_of_host(const HttpHandlers& /*handlers*/, const HttpRequest& /*request*/) {
  constexpr int kForbidden = 403;
  return {.status = kForbidden,
          .body =
              "this port has no token and answers this machine alone: ask for localhost or 127.0.0.1 (the header "
              "Host names another host)\n"};
}

/// Returns whether a Host header names this machine by a loopback number or localhost. A page of another site can make
/// its own name lead here (DNS rebinding), and then read the answers; its browser sends that name.
bool names_loopback(const std::string& host) {
  Result<protocol::HostPort> named = protocol::parse_host_port(host);
  if (!named) named = protocol::parse_host_port(host + ":0");
  return named && protocol::is_loopback_host(named->host);
}

/// REQUIRES: handlers.answer_reader.
HttpAnswer reader_answer(const HttpHandlers& handlers, const HttpRequest& request) {
  return handlers.answer_reader(request);
}

/// Health without its reason, and the page without this process's title: the answers to requests without the port's own
/// token.
HttpAnswer public_answer(const HttpHandlers& handlers, const HttpRequest& request) {
  HttpHandlers hidden;
  hidden.more_json = handlers.more_json;
  const auto hide = [](const auto& reason) {
    return [&reason]() -> std::optional<std::string> {
      return reason() ? std::optional<std::string>("no reason is given without the port's own token") : std::nullopt;
    };
  };
  hidden.unhealthy = hide(handlers.unhealthy);
  if (handlers.unready) hidden.unready = hide(handlers.unready);
  return quick_answer(hidden, request);
}

bool is_public(const HttpRequest& request) {
  return request.path == "/" || request.path == "/healthz" || request.path == "/readyz";
}

HttpAnswer busy_answer(const HttpHandlers& /*handlers*/, const HttpRequest& /*request*/) {
  constexpr int kUnavailable = 503;
  return {.status = kUnavailable, .body = "too many requests wait; ask again later\n"};
}

/// Not accept4(): a server keeps its last descriptors for this port by a limit on that
/// (server/connections/accept_limit.h).
Descriptor accept_one(const Descriptor& listener) {
  Descriptor socket(::accept(listener.number(), nullptr, nullptr));
  if (!socket) return socket;
  ::fcntl(socket.number(), F_SETFD, FD_CLOEXEC);
  ::fcntl(socket.number(), F_SETFL, O_NONBLOCK);
  return socket;
}

/// Returns the address of the other end as a number; empty: the connection is gone.
std::string address_of(const Descriptor& socket) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  auto* address = std::bit_cast<sockaddr*>(&peer);
  std::array<char, NI_MAXHOST> text{};
  if (::getpeername(socket.number(), address, &length) != 0 ||
      ::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  return text.data();
}

/// The whole answer to a request; `make` is one of the above.
template <typename Make>
std::string answered(const HttpHandlers& handlers, const HttpRequest& request, const Make& make) {
  constexpr int kFailed = 500;
  HttpAnswer answer;
  try {
    answer = make(handlers, request);
  } catch (...) {
    answer = {.status = kFailed, .body = "the handler failed\n"};
  }
  std::string headers = "Content-Type: " + std::string(answer.type) + "\r\n";
  headers += "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n";
  if (answer.status == 405) headers += "Allow: " + std::string(answer.allow) + "\r\n";
  if (answer.status == 401) headers += "WWW-Authenticate: Bearer realm=\"millrace\"\r\n";
  if (answer.type.starts_with("text/html"))
    headers += "Content-Security-Policy: " + std::string(kStatusPagePolicy) + "\r\n";
  return http_answer_bytes(answer.status, request.method, headers, answer.body);
}

}  // namespace

/// Moves bytes on all connections in one thread, which also makes the quick answers, health among them. Other threads
/// make the slow answers and return them by `made_`.
class HttpPort::Impl {
 public:
  /// host  at which it listens.
  Impl(HttpHandlers handlers, std::shared_ptr<HttpProtection> protection, std::string_view host,
       protocol::StreamListeners listeners, Descriptor wake)
      : handlers_(with_own_metrics(std::move(handlers))),
        protection_(std::move(protection)),
        checks_host_(!asks_for_token() && protocol::is_loopback_host(host)),
        listeners_(std::move(listeners)),
        wake_(std::move(wake)) {
    // With room for all answers under way a thread needs no memory to hand one over.
    made_.reserve(kMadeMax);
    taken_.reserve(kMadeMax);
  }
  ~Impl() {
    stop();
    threads_.shutdown();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  uint16_t port() const { return listeners_.port; }
  void start() {
    keep_spare();
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    stopping_.store(true);
    wake();
    thread_.join();
    threads_.shutdown();  // their remaining answers find no connection
  }

 private:
  struct Connection {
    Descriptor socket;
    std::unique_ptr<ByteChannel> channel;  ///< over the socket
    HttpExchange exchange;
    bool shook_hands = false;             ///< or has no handshake
    bool reading_waits_to_write = false;  ///< TLS shakes hands, or answers a message of its own
    bool writing_waits_to_read = false;
  };

  bool asks_for_token() const { return protection_ && protection_->asks_for_token(); }
  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.number(), &one, sizeof one);
  }
  void run();
  void run_pass();
  void end_youngest();
  bool is_done(TimeNs now);
  int wait_ms(TimeNs now) const;
  void poll_all(TimeNs now);
  void accept_all(const Descriptor& listener, TimeNs now);
  bool make_room();
  void keep_spare() {
    if (!spare_) spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  bool spend_spare();
  void read(uint64_t number, Connection& connection, TimeNs now);
  void read_some(uint64_t number, Connection& connection, TimeNs now);
  void write(Connection& connection, TimeNs now);
  void begin_answer(uint64_t number, Connection& connection, HttpRequest request, TimeNs now);
  void take_made(TimeNs now);
  void end_late(Connection& connection, TimeNs now);
  void break_off(Connection& connection);
  /// Appends this port's metrics to those of its program.
  HttpHandlers with_own_metrics(HttpHandlers handlers) {
    handlers.metrics_text = [this, text = std::move(handlers.metrics_text)] {
      const std::optional<int64_t> end = protection_ ? protection_->certificate_end() : std::nullopt;
      if (end) own_.certificate_end_time.with({"http-tls"}).set(static_cast<double>(*end));
      return text() + metrics_.prometheus_text();
    };
    return handlers;
  }

  Metrics metrics_;
  const HttpMetrics own_{metrics_};
  Counter& refused_tokens_ = own_.refused.with({"token"});
  Counter& failed_handshakes_ = own_.refused.with({"handshake"});
  Counter& busy_answers_ = own_.refused.with({"busy"});
  Counter& surplus_connections_ = own_.refused.with({"surplus"});
  const HttpHandlers handlers_;
  const std::shared_ptr<HttpProtection> protection_;
  const bool checks_host_;  ///< refuses requests that a browser sends for another site's page
  protocol::StreamListeners listeners_;
  Descriptor wake_;
  Descriptor spare_;                            ///< kept for one connection in a process that has no descriptor left
  std::map<uint64_t, Connection> connections_;  ///< by their number, which is used once
  uint64_t next_number_ = 0;
  TimeNs accept_from_ = 0;
  std::optional<TimeNs> stop_by_;
  std::atomic<bool> stopping_ = false;
  std::mutex made_mutex_;
  std::vector<std::pair<uint64_t, std::string>> made_;
  std::vector<std::pair<uint64_t, std::string>> taken_;  ///< of made_, in its turn
  RequestThreads threads_{kAnswerThreads, HttpPort::kConnectionsMax};
  std::thread thread_;
};

void HttpPort::Impl::run() {
  while (!is_done(monotonic_now_ns())) {
    if (!has_memory([this] { run_pass(); })) end_youngest();
  }
  connections_.clear();
}

void HttpPort::Impl::run_pass() {
  poll_all(monotonic_now_ns());
  const TimeNs now = monotonic_now_ns();
  take_made(now);
  for (auto& [number, connection] : connections_) {
    end_late(connection, now);
    write(connection, now);
  }
  std::erase_if(connections_,
                [](const auto& entry) { return entry.second.exchange.state() == HttpExchange::State::kOver; });
  keep_spare();
}

/// Frees memory after a pass that has broken off for lack of it.
void HttpPort::Impl::end_youngest() {
  if (!connections_.empty()) connections_.erase(std::prev(connections_.end()));
  ::poll(nullptr, 0, kMemoryPauseMs);
}

/// From stop() on: nothing is accepted, and only answers that are under way are carried to their end.
bool HttpPort::Impl::is_done(TimeNs now) {
  if (!stopping_.load()) return false;
  listeners_.sockets.clear();
  if (!stop_by_) stop_by_ = now + kStopTimeout;
  std::erase_if(connections_, [](const auto& entry) {
    const HttpExchange::State state = entry.second.exchange.state();
    return state == HttpExchange::State::kReading || state == HttpExchange::State::kClosing;
  });
  return connections_.empty() || now >= *stop_by_;
}

int HttpPort::Impl::wait_ms(TimeNs now) const {
  TimeNs until = now + 10 * kNsPerS;
  if (accept_from_ > now) until = std::min(until, accept_from_);
  if (stop_by_) until = std::min(until, *stop_by_);
  for (const auto& [number, connection] : connections_)
    until = std::min(until, connection.exchange.deadline().value_or(until));
  return static_cast<int>(std::max<TimeNs>(until - now + kNsPerMs - 1, 0) / kNsPerMs);
}

void HttpPort::Impl::poll_all(TimeNs now) {
  std::vector<pollfd> items{{wake_.number(), POLLIN, 0}};
  const bool accepts = now >= accept_from_;
  for (const Descriptor& listener : listeners_.sockets)
    items.push_back({listener.number(), static_cast<short>(accepts ? POLLIN : 0), 0});
  const size_t first = items.size();
  std::vector<uint64_t> numbers;
  for (const auto& [number, connection] : connections_) {
    const int reads = connection.exchange.reads() ? POLLIN : 0;
    const bool is_writing = connection.exchange.state() == HttpExchange::State::kWriting;
    const bool writes = (is_writing && !connection.writing_waits_to_read) || connection.reading_waits_to_write;
    items.push_back({connection.socket.number(), static_cast<short>(reads | (writes ? POLLOUT : 0)), 0});
    numbers.push_back(number);
  }
  if (::poll(items.data(), items.size(), wait_ms(now)) <= 0) return;
  now = monotonic_now_ns();
  if (items[0].revents != 0) {
    uint64_t times = 0;
    [[maybe_unused]] const ssize_t taken = ::read(wake_.number(), &times, sizeof times);
  }
  for (size_t at = 0; at < numbers.size(); ++at) {
    const int events = items[first + at].revents;
    Connection& connection = connections_.at(numbers[at]);
    // poll() reports these unasked, and for ever. Both directions are closed then: no peer can take an answer.
    if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
      break_off(connection);
    } else if ((events & POLLIN) != 0 || (connection.reading_waits_to_write && (events & POLLOUT) != 0)) {
      read(numbers[at], connection, now);
    }
  }
  for (size_t at = 0; at < listeners_.sockets.size(); ++at) {
    if (items[1 + at].revents != 0) accept_all(listeners_.sockets[at], now);
  }
}

void HttpPort::Impl::accept_all(const Descriptor& listener, TimeNs now) {
  constexpr int kAcceptedPerPass = 16;
  for (int taken = 0; taken < kAcceptedPerPass; ++taken) {
    Descriptor socket = accept_one(listener);
    if (!socket && taken > 0) return;
    // The listener is readable, so that there is one. Later ones may be none: the system looks for a descriptor first.
    if (!socket && (errno == EMFILE || errno == ENFILE) && (spend_spare() || make_room()))
      socket = accept_one(listener);
    if (!socket) {
      // Anything else passes: the connection is gone. Without room the listener stays readable.
      const bool no_room = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (no_room) accept_from_ = now + kAcceptPause;
      return;
    }
    if (connections_.size() >= kConnectionsMax) make_room();
    std::unique_ptr<ByteChannel> channel = protection_ ? protection_->open(socket) : open_plain_channel(socket);
    if (!channel) return failed_handshakes_.increment();
    const bool is_open = channel->is_open();
    connections_.emplace(next_number_++, Connection{std::move(socket), std::move(channel), HttpExchange(now), is_open});
  }
}

/// Ends a connection, as exchange_to_end() says. False: there is none.
bool HttpPort::Impl::make_room() {
  std::vector<const HttpExchange*> exchanges;
  std::vector<uint64_t> numbers;
  for (const auto& [number, connection] : connections_) {
    exchanges.push_back(&connection.exchange);
    numbers.push_back(number);
  }
  const std::optional<size_t> ended = exchange_to_end(exchanges);
  if (!ended) return false;
  connections_.erase(numbers[*ended]);
  surplus_connections_.increment();
  return true;
}

bool HttpPort::Impl::spend_spare() {
  if (!spare_) return false;
  spare_.close();
  return true;
}

/// Reads, and begins an answer. A request for which there is no memory loses its connection.
void HttpPort::Impl::read(uint64_t number, Connection& connection, TimeNs now) {
  if (!has_memory([&] { read_some(number, connection, now); })) break_off(connection);
}

void HttpPort::Impl::read_some(uint64_t number, Connection& connection, TimeNs now) {
  constexpr int kReadsPerPass = 4;
  std::array<char, 16 << 10> bytes;  // a whole record of TLS: none of it waits where poll() does not see it
  for (int reads = 0; reads < kReadsPerPass; ++reads) {
    const ByteChannel::Moved got = connection.channel->read(bytes);
    connection.shook_hands = connection.shook_hands || connection.channel->is_open();
    connection.reading_waits_to_write = got.outcome == ByteChannel::Outcome::kWaitToWrite;
    if (got.outcome == ByteChannel::Outcome::kBroken) return break_off(connection);
    if (got.outcome == ByteChannel::Outcome::kEnd) return connection.exchange.on_end();
    if (got.outcome != ByteChannel::Outcome::kMoved) return;
    auto request = connection.exchange.on_bytes(std::string_view(bytes.data(), got.bytes), now);
    if (request) begin_answer(number, connection, std::move(*request), now);
  }
}

/// Answers 408 or ends an exchange whose time is over. A peer that has not ended its handshake can take no answer.
void HttpPort::Impl::end_late(Connection& connection, TimeNs now) {
  const std::optional<TimeNs> deadline = connection.exchange.deadline();
  if (deadline && now >= *deadline && !connection.channel->is_open()) return break_off(connection);
  connection.exchange.on_time(now);
}

void HttpPort::Impl::break_off(Connection& connection) {
  if (!connection.shook_hands && connection.exchange.state() != HttpExchange::State::kOver)
    failed_handshakes_.increment();
  connection.exchange.on_broken();
}

void HttpPort::Impl::begin_answer(uint64_t number, Connection& connection, HttpRequest request, TimeNs now) {
  const auto answer_now = [&](const auto& make) {
    connection.exchange.answer(answered(handlers_, request, make), now);
  };
  if (checks_host_ && !request.host.empty() && !names_loopback(request.host)) return answer_now(refusal_of_host);
  std::optional<std::string> reader = std::string();
  if (asks_for_token()) reader = protection_->reader_of(request.token);
  if (reader != std::string() && is_public(request)) return answer_now(public_answer);
  if (!reader || (!reader->empty() && !handlers_.answer_reader)) {
    refused_tokens_.increment();
    return answer_now(refusal_without_token);
  }
  const bool is_reader = !reader->empty();
  const bool asks_reader = is_reader || (handlers_.answer_reader && request.path.starts_with(kJobsPath));
  if (!asks_reader && !takes_time(handlers_, request)) return answer_now(quick_answer);
  if (asks_reader) request.address = address_of(connection.socket);
  request.reader = std::move(*reader);
  const bool queued = threads_.enqueue([this, number, request, make = asks_reader ? reader_answer : slow_answer] {
    std::string bytes;
    has_memory([&] { bytes = answered(handlers_, request, make); });
    {
      const std::lock_guard lock(made_mutex_);
      made_.emplace_back(number, std::move(bytes));
    }
    wake();
  });
  if (queued) return;
  busy_answers_.increment();
  answer_now(busy_answer);
}

void HttpPort::Impl::take_made(TimeNs now) {
  {
    const std::lock_guard lock(made_mutex_);
    taken_.swap(made_);
  }
  while (!taken_.empty()) {
    // Out of the list first: where memory ends below, no later pass takes this answer for an empty one.
    auto [number, bytes] = std::move(taken_.back());
    taken_.pop_back();
    const auto connection = connections_.find(number);
    if (connection == connections_.end()) continue;
    // Empty where there was no memory for it.
    if (bytes.empty()) {
      break_off(connection->second);
    } else {
      connection->second.exchange.answer(std::move(bytes), now);
    }
  }
}

void HttpPort::Impl::write(Connection& connection, TimeNs now) {
  HttpExchange& exchange = connection.exchange;
  while (exchange.state() == HttpExchange::State::kWriting) {
    const ByteChannel::Moved sent = connection.channel->write(exchange.unsent());
    connection.writing_waits_to_read = sent.outcome == ByteChannel::Outcome::kWaitToRead;
    if (sent.outcome == ByteChannel::Outcome::kBroken) return exchange.on_broken();
    if (sent.outcome != ByteChannel::Outcome::kMoved) return;
    exchange.on_sent(sent.bytes, now);
    // Ends only this direction and reads on: close() with unread bytes would reset the connection and lose the answer.
    if (exchange.state() == HttpExchange::State::kClosing) connection.channel->end_writing();
  }
}

HttpPort::HttpPort(std::unique_ptr<Impl> impl, std::string host) : impl_(std::move(impl)), host_(std::move(host)) {}

HttpPort::~HttpPort() { stop(); }

Result<std::unique_ptr<HttpPort>> HttpPort::start(std::string_view address, std::string_view flag,
                                                  HttpHandlers handlers, std::shared_ptr<HttpProtection> protection) {
  const Result<protocol::HostPort> parsed = protocol::parse_host_port(address);
  if (!parsed) return fail(parsed.error().code, std::string(flag) + ": " + parsed.error().message);
  auto listeners = protocol::listen_on_host(*parsed);
  if (!listeners) {
    const bool in_use = listeners.error().code == ErrorCode::kConflict;
    return fail(ErrorCode::kIo, "cannot listen on " + std::string(address) + " for HTTP: " +
                                    (in_use ? "the port is in use by another process; choose another one with "
                                            : listeners.error().message + "; choose another address with ") +
                                    std::string(flag) + " (port 0: any free one)");
  }
  Descriptor wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake) return fail(ErrorCode::kIo, std::string("no file descriptor is left for HTTP: ") + kRaiseOpenFiles);
  auto impl = std::make_unique<Impl>(std::move(handlers), std::move(protection), parsed->host, std::move(*listeners),
                                     std::move(wake));
  std::unique_ptr<HttpPort> port(new HttpPort(std::move(impl), parsed->host));
  port->impl_->start();
  return port;
}

uint16_t HttpPort::port() const { return impl_->port(); }

std::string HttpPort::address() const { return protocol::host_port_text(host_, port()); }

void HttpPort::stop() { impl_->stop(); }

}  // namespace millrace::monitoring
