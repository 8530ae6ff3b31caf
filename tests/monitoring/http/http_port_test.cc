#include "monitoring/http/http_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/http/status_page.h"
#include "tests/monitoring/http/raw_http.h"

namespace millrace::monitoring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string get(uint16_t port, const std::string& path) {
  return answer_to(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

HttpHandlers handlers() {
  return {.metrics_text = [] { return std::string("millrace_a_total 1\n"); },
          .unhealthy = [] { return std::optional<std::string>(); },
          .status_json = [] { return std::string(R"({"shard": 0})"); },
          .title = "Millrace test"};
}

std::unique_ptr<HttpPort> started(HttpHandlers with) {
  Result<std::unique_ptr<HttpPort>> port = HttpPort::start("127.0.0.1:0", "--http", std::move(with));
  EXPECT_TRUE(port.has_value()) << (port ? "" : port.error().message);
  return port ? std::move(*port) : nullptr;
}

TEST(HttpPortTest, ServesItsFourPages) {
  const auto port = started(handlers());
  ASSERT_TRUE(port);
  ASSERT_NE(port->port(), 0);
  const std::string metrics = get(port->port(), "/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(metrics, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics, HasSubstr("\r\n\r\nmillrace_a_total 1\n"));
  EXPECT_THAT(get(port->port(), "/healthz"), HasSubstr("\r\n\r\nok\n"));
  const std::string status = get(port->port(), "/status?x=1");
  EXPECT_THAT(status, HasSubstr("application/json"));
  EXPECT_THAT(status, HasSubstr("\r\n\r\n{\"shard\": 0}"));
  const std::string page = get(port->port(), "/");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("<title>Millrace test</title>"));
}

TEST(HttpPortTest, TheTimelineGetsItsQuery) {
  EXPECT_THAT(get(started(handlers())->port(), "/trace"), StartsWith("HTTP/1.1 404"));
  HttpHandlers with = handlers();
  with.trace_json = [](std::string_view query) -> Result<std::string> {
    if (query == "wrong") return fail(ErrorCode::kInvalidArgument, "no such parameter");
    if (query == "early") return fail(ErrorCode::kUnavailable, "not yet");
    return "{\"" + std::string(query) + "\":0}";
  };
  const auto port = started(std::move(with));
  ASSERT_TRUE(port);
  EXPECT_THAT(get(port->port(), "/trace?seconds=2&after=1?2"), HasSubstr("\r\n\r\n{\"seconds=2&after=1?2\":0}"));
  EXPECT_THAT(get(port->port(), "/trace"), HasSubstr("\r\n\r\n{\"\":0}"));
  EXPECT_THAT(get(port->port(), "/trace?"), HasSubstr("\r\n\r\n{\"\":0}"));
  EXPECT_THAT(get(port->port(), "/trace?wrong"), AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("no such parameter\n")));
  EXPECT_THAT(get(port->port(), "/trace?early"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("not yet\n")));
}

TEST(HttpPortTest, AFurtherPathGetsItsQuery) {
  HttpHandlers with = handlers();
  with.query_json["/path"] = [](std::string_view query) -> Result<std::string> {
    if (query == "wrong") return fail(ErrorCode::kInvalidArgument, "no such parameter");
    if (query == "early") return fail(ErrorCode::kUnavailable, "not yet");
    return "{\"" + std::string(query) + "\":0}";
  };
  const auto port = started(std::move(with));
  ASSERT_TRUE(port);
  EXPECT_THAT(get(port->port(), "/path?shard=1"), HasSubstr("\r\n\r\n{\"shard=1\":0}"));
  EXPECT_THAT(get(port->port(), "/path?wrong"), AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("no such parameter\n")));
  EXPECT_THAT(get(port->port(), "/path?early"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("not yet\n")));
  EXPECT_THAT(get(port->port(), "/trace"), StartsWith("HTTP/1.1 404"));
}

TEST(HttpPortTest, HealthTellsTheReason) {
  std::atomic<bool> healthy = true;
  HttpHandlers with = handlers();
  with.unhealthy = [&] {
    return healthy ? std::nullopt : std::optional<std::string>("the membership table cannot be reached");
  };
  const auto port = started(std::move(with));
  ASSERT_TRUE(port);
  EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  healthy = false;
  const std::string answer = get(port->port(), "/healthz");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr("the membership table cannot be reached\n"));
}

TEST(HttpPortTest, ReadinessIsApartFromHealth) {
  std::optional<std::string> unready = "starting";
  HttpHandlers with = handlers();
  with.unready = [&] { return unready; };
  const auto port = started(std::move(with));
  ASSERT_TRUE(port);
  EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get(port->port(), "/readyz"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("\r\n\r\nstarting\n")));
  unready.reset();
  EXPECT_THAT(get(port->port(), "/readyz"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\nready\n")));
}

TEST(HttpPortTest, AProcessWithoutReadinessIsReadyWhileItIsHealthy) {
  HttpHandlers with = handlers();
  with.unhealthy = [] { return std::optional<std::string>("the session has ended"); };
  EXPECT_THAT(get(started(handlers())->port(), "/readyz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get(started(std::move(with))->port(), "/readyz"), HasSubstr("the session has ended\n"));
}

TEST(HttpPortTest, OtherPathsAreNotFoundAndOtherMethodsNotAllowed) {
  const auto port = started(handlers());
  ASSERT_TRUE(port);
  for (const char* path : {"/nothing", "/status/", "//", "/metrics/../status", "/%2e%2e/etc/passwd"}) {
    EXPECT_THAT(get(port->port(), path), StartsWith("HTTP/1.1 404")) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
    const std::string answer = answer_to(
        port->port(), std::string(method) + " /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405")) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD")) << method;
  }
}

TEST(HttpPortTest, PathsBelowJobsAreTheReadersHandlers) {
  const std::string post = "POST /jobs/a%2Fb/end HTTP/1.1\r\nContent-Length: 3\r\n\r\nwhy";
  EXPECT_THAT(answer_to(started(handlers())->port(), post), StartsWith("HTTP/1.1 405"));
  HttpHandlers with = handlers();
  with.answer_reader = [](const HttpRequest& request) {
    return HttpAnswer{.status = request.method == "POST" ? 403 : 405,
                      .body = request.path + " " + request.body + " " + request.reader + " " + request.address,
                      .allow = "POST"};
  };
  const auto port = started(std::move(with));
  ASSERT_TRUE(port);
  EXPECT_THAT(answer_to(port->port(), post),
              AllOf(StartsWith("HTTP/1.1 403 Forbidden\r\n"), HasSubstr("\r\n\r\n/jobs/a%2Fb/end why  127.0.0.1")));
  EXPECT_THAT(get(port->port(), "/jobs/a/end"), AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: POST\r\n")));
  EXPECT_THAT(get(port->port(), "/status"), StartsWith("HTTP/1.1 200")) << "a port without tokens";
  EXPECT_THAT(get(port->port(), "/jobs"), StartsWith("HTTP/1.1 404"));
}

TEST(HttpPortTest, ALoopbackPortRefusesTheNamesOfOtherHosts) {
  const auto port = started(handlers());
  ASSERT_TRUE(port);
  const auto asked_for = [&](const std::string& host, const std::string& path = "/status") {
    return answer_to(port->port(), "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  };
  for (const char* other : {"evil.example", "evil.example:7700", "127.0.0.1.evil.example", "192.0.2.1", "[2001:db8::1]",
                            "localhost.evil.example:80", "127.0.0.1:x", "user@localhost", "a:b:c"}) {
    const std::string answer = asked_for(other);
    EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 403"), HasSubstr("ask for localhost"), Not(HasSubstr("shard"))))
        << other;
    EXPECT_THAT(asked_for(other, "/metrics"), StartsWith("HTTP/1.1 403")) << other;
  }
  for (const char* own :
       {"localhost", "localhost:1", "127.0.0.1", "127.0.0.1:7700", "127.1.2.3", "[::1]", "[::1]:7700"})
    EXPECT_THAT(asked_for(own), StartsWith("HTTP/1.1 200")) << own;
  EXPECT_THAT(answer_to(port->port(), "GET /status HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpPortTest, HeadIsGetWithoutTheBody) {
  const auto port = started(handlers());
  ASSERT_TRUE(port);
  const std::string answer = answer_to(port->port(), "HEAD /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 12\r\n"));
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\n"));
}

TEST(HttpPortTest, AHandlerThatThrowsGivesAnErrorAndThePortLives) {
  HttpHandlers with = handlers();
  with.status_json = []() -> std::string { throw std::runtime_error("secret"); };
  const auto port = started(std::move(with));
  ASSERT_TRUE(port);
  const std::string answer = get(port->port(), "/status");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(answer, Not(HasSubstr("secret")));
  EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpPortTest, HostileRequestsAreRefusedAndThePortLives) {
  const auto port = started(handlers());
  ASSERT_TRUE(port);
  const std::string long_path(20'000, 'a'), long_header(100'000, 'b');
  for (const std::string& request :
       {std::string("\r\n\r\n"), std::string("\0\xff\n\n", 4), std::string("GET\r\n\r\n"),
        "GET /" + long_path + " HTTP/1.1\r\n\r\n", "GET /status HTTP/1.1\r\nX: " + long_header + "\r\n\r\n",
        std::string("POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")}) {
    EXPECT_THAT(answer_to(port->port(), request), Not(StartsWith("HTTP/1.1 200"))) << request.substr(0, 40);
  }
  EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpPortTest, ConcurrentScrapesAllGetTheirAnswer) {
  std::atomic<int> calls = 0;
  HttpHandlers with = handlers();
  with.metrics_text = [&] {
    return "millrace_calls_total " + std::to_string(++calls) + "\n" + std::string(200'000, '#');
  };
  const auto port = started(std::move(with));
  ASSERT_TRUE(port);
  std::atomic<int> complete = 0;
  std::vector<std::thread> scrapers;
  for (int i = 0; i < 8; ++i) {
    scrapers.emplace_back([&] {
      for (int j = 0; j < 5; ++j) complete += get(port->port(), "/metrics").size() > 200'000 ? 1 : 0;
    });
  }
  for (std::thread& scraper : scrapers) scraper.join();
  EXPECT_EQ(complete, 40);
  EXPECT_EQ(calls, 40);
}

TEST(HttpPortTest, MoreSilentConnectionsThanThreadsOnlyDelayTheOthers) {
  const auto port = started(handlers());
  ASSERT_TRUE(port);
  std::vector<int> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(connect_to(port->port()));
  EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  for (const int socket : silent) ::close(socket);
}

/// Connections that have begun a request and never end it.
class SlowClients {
 public:
  SlowClients(uint16_t port, int count) {
    for (int i = 0; i < count; ++i) {
      sockets_.push_back(connect_to(port));
      const std::string begun = "GET /metrics HTTP/1.1\r\nX-" + std::to_string(i) + ": ";
      EXPECT_GT(::send(sockets_.back(), begun.data(), begun.size(), MSG_NOSIGNAL), 0);
    }
  }
  ~SlowClients() {
    for (const int socket : sockets_) ::close(socket);
  }
  SlowClients(const SlowClients&) = delete;
  SlowClients& operator=(const SlowClients&) = delete;

 private:
  std::vector<int> sockets_;
};

TEST(HttpPortTest, UnfinishedRequestsDoNotBlockOtherClients) {
  const auto port = started(handlers());
  ASSERT_TRUE(port);
  for (const int count : {2, 40, 200}) {
    const SlowClients slow(port->port(), count);
    EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200")) << count;
    const std::string metrics = get(port->port(), "/metrics");
    EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200")) << count;
    const bool all_had_room = metrics.contains("millrace_http_refused_total{reason=\"surplus\"} 0\n");
    EXPECT_EQ(all_had_room, count == 2) << "of " << HttpPort::kConnectionsMax;
    EXPECT_THAT(get(port->port(), "/status"), StartsWith("HTTP/1.1 200")) << count;
  }
}

/// Sends `count` requests on a connection each, and reads no answer. The caller closes the sockets.
std::vector<int> ask_without_reading(uint16_t port, const std::string& path, int count) {
  const std::string request = "GET " + path + " HTTP/1.1\r\n\r\n";
  std::vector<int> sockets;
  for (int i = 0; i < count; ++i) {
    sockets.push_back(connect_to(port));
    ::send(sockets.back(), request.data(), request.size(), MSG_NOSIGNAL);
  }
  return sockets;
}

/// Handlers of which /status answers once `may_answer` is set.
HttpHandlers handlers_that_hold_status(std::promise<void>& may_answer) {
  HttpHandlers with = handlers();
  with.status_json = [held = may_answer.get_future().share()] {
    held.wait();
    return std::string("{}");
  };
  return with;
}

TEST(HttpPortTest, UnreadAnswersDoNotBlockOtherClients) {
  HttpHandlers with = handlers();
  with.metrics_text = [] { return std::string(8 << 20, '#'); };
  const auto port = started(std::move(with));
  ASSERT_TRUE(port);
  const std::vector<int> deaf = ask_without_reading(port->port(), "/metrics", 40);
  EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  for (const int socket : deaf) ::close(socket);
}

TEST(HttpPortTest, HealthWaitsForNoHandlerOfOtherRequests) {
  std::promise<void> may_answer;
  const auto port = started(handlers_that_hold_status(may_answer));
  ASSERT_TRUE(port);
  // Fewer than HttpPort::kConnectionsMax: the port ends none of them for another one.
  const std::vector<int> asked = ask_without_reading(port->port(), "/status", 20);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  may_answer.set_value();
  for (const int socket : asked) {
    char byte = 0;
    EXPECT_EQ(::recv(socket, &byte, 1, 0), 1) << "each has its answer then";
    ::close(socket);
  }
}

TEST(HttpPortTest, HealthIsAnsweredWhereEveryConnectionWaitsForAHandler) {
  std::promise<void> may_answer;
  const auto port = started(handlers_that_hold_status(may_answer));
  ASSERT_TRUE(port);
  const std::vector<int> asked = ask_without_reading(port->port(), "/status", 60);
  EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  may_answer.set_value();
  for (const int socket : asked) ::close(socket);
}

/// Returns the file that a descriptor of this process is open on ("socket:[4026]"). Empty: it is closed. Unlike
/// fstat(), it does not use the descriptor, which another thread may close.
std::string target_of(const std::filesystem::path& descriptor) {
  std::error_code closed;
  return std::filesystem::read_symlink(descriptor, closed).string();
}

/// One of this process's descriptors, as long as it is open: its number may be another file's later.
struct OpenFile {
  std::filesystem::path descriptor;
  std::string target;
  bool is_open() const { return target_of(descriptor) == target; }
};

/// Returns the port's end of the connection of `client`.
std::optional<OpenFile> accepted_end_of(int client) {
  sockaddr_in own{};
  socklen_t length = sizeof own;
  getsockname(client, reinterpret_cast<sockaddr*>(&own), &length);
  for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(open.path().filename());
    sockaddr_in peer{};
    length = sizeof peer;
    if (getpeername(number, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.sin_family != AF_INET) continue;
    if (peer.sin_port == own.sin_port) return OpenFile{open.path(), target_of(open.path())};
  }
  return std::nullopt;
}

void reset_connection(int socket) {
  const linger gone_at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &gone_at_once, sizeof gone_at_once);
  ::close(socket);
}

/// The answers of /healthz tell that the port's thread has looked at every connection since the first was asked for.
void let_the_port_look(uint16_t port) {
  for (int turns = 0; turns < 3; ++turns) EXPECT_THAT(get(port, "/healthz"), StartsWith("HTTP/1.1 200"));
}

// Such a connection is readable for ever, and has no deadline: a port that keeps it turns without a pause.
TEST(HttpPortTest, AConnectionThatIsResetWhileItsAnswerIsMadeIsGone) {
  std::promise<void> may_answer;
  const auto port = started(handlers_that_hold_status(may_answer));
  ASSERT_TRUE(port);
  const std::string more(10'000, 'x');
  for (const bool closes_half : {false, true}) {
    for (const bool sends_more : {false, true}) {
      const int socket = ask_without_reading(port->port(), "/status", 1).front();
      let_the_port_look(port->port());
      const std::optional<OpenFile> accepted = accepted_end_of(socket);
      ASSERT_TRUE(accepted);
      if (sends_more) ::send(socket, more.data(), more.size(), MSG_NOSIGNAL);
      if (closes_half) ::shutdown(socket, SHUT_WR);
      let_the_port_look(port->port());
      EXPECT_TRUE(accepted->is_open()) << "a peer that may still read keeps its connection";
      reset_connection(socket);
      let_the_port_look(port->port());
      EXPECT_FALSE(accepted->is_open()) << closes_half << sends_more;
    }
  }
  may_answer.set_value();
}

TEST(HttpPortTest, AClientThatClosesItsHalfStillGetsItsAnswer) {
  std::promise<void> may_answer;
  const auto port = started(handlers_that_hold_status(may_answer));
  ASSERT_TRUE(port);
  const int socket = ask_without_reading(port->port(), "/status", 1).front();
  ::shutdown(socket, SHUT_WR);
  let_the_port_look(port->port());
  may_answer.set_value();
  char bytes[16] = {};
  EXPECT_GT(::recv(socket, bytes, sizeof bytes, 0), 0);
  EXPECT_THAT(std::string(bytes, 8), "HTTP/1.1");
  ::close(socket);
}

TEST(HttpPortTest, ARequestAboveTheLimitIsRefusedAsBusy) {
  std::promise<void> may_answer;
  const auto port = started(handlers_that_hold_status(may_answer));
  ASSERT_TRUE(port);
  // A client that leaves at once makes room for a connection, not for an answer: the handlers must still answer it.
  std::string last;
  for (int i = 0; i < 60 && !last.starts_with("HTTP/1.1 503"); ++i) {
    const int socket = ask_without_reading(port->port(), "/status", 1).front();
    EXPECT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));  // the request before it was read
    char bytes[16] = {};
    const ssize_t got = ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) last.assign(bytes, static_cast<size_t>(got));
    reset_connection(socket);
  }
  EXPECT_THAT(last, StartsWith("HTTP/1.1 503"));
  may_answer.set_value();
  std::string metrics;
  for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; metrics.empty() && monotonic_now_ns() < until;) {
    const std::string answer = get(port->port(), "/metrics");
    if (answer.starts_with("HTTP/1.1 200")) metrics = answer;
  }
  EXPECT_THAT(metrics, HasSubstr("millrace_http_refused_total{reason=\"busy\"}"));
  EXPECT_THAT(metrics, Not(HasSubstr("millrace_http_refused_total{reason=\"busy\"} 0\n")));
}

/// Limits the process to the descriptors that are open now, and `more`; restores the limit when destroyed. The system
/// limits the greatest number, so that this takes the free numbers below an open one. A thread that closes a descriptor
/// may then open another.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more) {
    getrlimit(RLIMIT_NOFILE, &before_);
    int highest = 0;
    for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd"))
      highest = std::max(highest, std::stoi(open.path().filename()));
    int next = ::dup(STDIN_FILENO);
    for (; next < highest; next = ::dup(STDIN_FILENO)) taken_.push_back(next);
    ::close(next);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(next) + more;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewDescriptors() {
    setrlimit(RLIMIT_NOFILE, &before_);
    for (const int number : taken_) ::close(number);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

/// Asks for /healthz on a socket that is there already, and closes it. Opens no descriptor.
std::string answer_on(int socket, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const std::string request = "GET /healthz HTTP/1.1\r\n\r\n";
  EXPECT_GT(::send(socket, request.data(), request.size(), MSG_NOSIGNAL), 0);
  std::string answer;
  char bytes[256];
  for (ssize_t now; (now = ::recv(socket, bytes, sizeof(bytes), 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(now));
  ::close(socket);
  return answer;
}

TEST(HttpPortTest, NoDescriptorsLeft_SpareOneClosedBeforeAClientsConnection) {
  std::promise<void> may_answer;
  const auto port = started(handlers_that_hold_status(may_answer));
  ASSERT_TRUE(port);
  const int waits = ask_without_reading(port->port(), "/status", 1).front();
  let_the_port_look(port->port());
  const std::optional<OpenFile> accepted = accepted_end_of(waits);
  ASSERT_TRUE(accepted);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  {
    const FewDescriptors few(0);
    EXPECT_THAT(answer_on(socket, port->port()), StartsWith("HTTP/1.1 200"));
    EXPECT_TRUE(accepted->is_open());
  }
  may_answer.set_value();
  char byte = 0;
  EXPECT_EQ(::recv(waits, &byte, 1, 0), 1) << "its answer comes";
  ::close(waits);
}

/// The port's spare descriptor is one of them.
ptrdiff_t count_null_files() {
  return std::ranges::count_if(std::filesystem::directory_iterator("/proc/self/fd"), [](const auto& open) {
    std::error_code gone;
    return std::filesystem::read_symlink(open.path(), gone) == "/dev/null";
  });
}

TEST(HttpPortTest, AProcessWithoutDescriptorsStillAnswersOneAfterTheOther) {
  const auto port = started(handlers());
  ASSERT_TRUE(port);
  const ptrdiff_t with_spare = count_null_files();
  ASSERT_THAT(get(port->port(), "/healthz"), StartsWith("HTTP/1.1 200"));
  for (int i = 0; i < 3; ++i) {
    // The port keeps a spare descriptor again once the connection is gone; it cannot have one that this test takes
    // earlier.
    while (count_null_files() < with_spare) std::this_thread::yield();
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    const FewDescriptors few(0);
    EXPECT_THAT(answer_on(socket, port->port()), StartsWith("HTTP/1.1 200")) << i;
  }
}

TEST(HttpPortTest, APortInUseNamesTheFlagToChange) {
  const auto port = started(handlers());
  ASSERT_TRUE(port);
  const std::string address = "127.0.0.1:" + std::to_string(port->port());
  const auto second = HttpPort::start(address, "--http", handlers());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  EXPECT_THAT(second.error().message, HasSubstr(address));
  EXPECT_THAT(second.error().message, HasSubstr("in use"));
  EXPECT_THAT(second.error().message, HasSubstr("--http"));
}

TEST(HttpPortTest, AfterStopThePortIsFree) {
  auto port = started(handlers());
  ASSERT_TRUE(port);
  const uint16_t number = port->port();
  EXPECT_THAT(get(number, "/healthz"), StartsWith("HTTP/1.1 200"));
  port->stop();
  port->stop();
  EXPECT_EQ(get(number, "/healthz"), "no connection");
  const auto again = HttpPort::start("127.0.0.1:" + std::to_string(number), "--http", handlers());
  EXPECT_TRUE(again.has_value());
  for (int i = 0; i < 20; ++i) started(handlers());  // started and stopped at once
}

TEST(HttpPortTest, AddressesThatCannotBeAreRefusedByName) {
  for (const char* address : {"", ":", "9100", "127.0.0.1", "127.0.0.1:", ":9100", "127.0.0.1:65536", "127.0.0.1:-1",
                              "127.0.0.1:1x", "::1:9100", "[]:1", "[::1:9100"}) {
    const auto port = HttpPort::start(address, "--http", handlers());
    ASSERT_FALSE(port.has_value()) << address;
    EXPECT_EQ(port.error().code, ErrorCode::kInvalidArgument) << address;
    EXPECT_THAT(port.error().message, StartsWith("--http: ")) << address;
  }
  const auto elsewhere = HttpPort::start("203.0.113.7:0", "--http", handlers());
  ASSERT_FALSE(elsewhere.has_value());
  EXPECT_EQ(elsewhere.error().code, ErrorCode::kIo);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("--http"));
}

TEST(StatusPageTest, EscapesItsTitleAndNeverSetsMarkup) {
  const std::string page = status_page("</title><script>alert('x')</script>&\"", PageOf::kCluster);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, HasSubstr("&lt;/title&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"));
  for (const char* sink : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("}) {
    EXPECT_THAT(page, Not(HasSubstr(sink)));
  }
}

TEST(StatusPageTest, NeedsNothingFromElsewhere) {
  const std::string page = status_page("Millrace", PageOf::kProcess);
  for (const char* elsewhere : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(elsewhere)));
  }
}

}  // namespace
}  // namespace millrace::monitoring
