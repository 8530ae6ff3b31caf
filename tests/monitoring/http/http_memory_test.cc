#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "monitoring/http/http_port.h"
#include "tests/monitoring/http/raw_http.h"
#include "tests/support/replaced_new.h"

/// A port whose threads find no memory: a request may get no answer, and the process continues.
namespace millrace::monitoring {
namespace {

using millrace::testing::FailingAllocation;
using ::testing::HasSubstr;

constexpr int kNoFailure = -1;
constexpr int kAllocationsMax = 60;

/// Lets an allocation of the calling thread fail, counted from this call. A later call takes it back.
void fail_allocation(int at) {
  thread_local std::optional<FailingAllocation> failing;
  failing.reset();
  if (at != kNoFailure) failing.emplace(static_cast<uint64_t>(at), FailingAllocation::Then::kGoesOn);
}

std::string get_from(const HttpPort& port, const std::string& path) {
  return answer_to(port.port(), "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

struct HttpMemory : ::testing::Test {
  HttpMemory() {
    HttpHandlers handlers;
    handlers.metrics_text = [this] {
      fail_allocation(fails_at);
      return std::string(1'000, 'm');
    };
    handlers.unhealthy = [this] {
      fail_allocation(fails_at);
      return std::optional<std::string>();
    };
    handlers.status_json = [] { return std::string("{}"); };
    port = std::move(*HttpPort::start("127.0.0.1:0", "--http", std::move(handlers)));
  }
  std::atomic<int> fails_at = kNoFailure;
  std::unique_ptr<HttpPort> port;
};

TEST_F(HttpMemory, EndsInTheThreadThatMovesBytesAndThePortContinues) {
  for (int at = 0; at < kAllocationsMax; ++at) {
    fails_at = at;
    get_from(*port, "/healthz");
    for (const char* path : {"/readyz", "/nothing", "/metrics"}) get_from(*port, path);  // one of them meets it
    fails_at = kNoFailure;
    while (!get_from(*port, "/healthz").contains("ok")) {
    }
    EXPECT_THAT(get_from(*port, "/metrics"), HasSubstr("mmm")) << at;
  }
}

TEST_F(HttpMemory, EndsInAThreadThatMakesAnswersAndTheConnectionEnds) {
  for (int at = 0; at < kAllocationsMax; ++at) {
    fails_at = at;
    const std::string answer = get_from(*port, "/metrics");
    EXPECT_TRUE(answer.empty() || answer.contains("mmm") || answer.contains("the handler failed")) << answer;
  }
  fails_at = kNoFailure;
  while (!get_from(*port, "/metrics").contains("mmm")) {
  }
}

}  // namespace
}  // namespace millrace::monitoring
