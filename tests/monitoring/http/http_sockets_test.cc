#include "monitoring/http/http_sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "protocol/address/stream_sockets.h"

/// HTTP by a host's name: every address of it, both families.
namespace millrace::monitoring {
namespace {

using ::testing::HasSubstr;

constexpr int kSocketTimeoutMs = 20'000;

protocol::HostResolver resolver_of(const std::vector<std::string>& numbers) {
  return [numbers](const std::string& host) -> Result<std::vector<protocol::HostAddress>> {
    if (numbers.empty()) return fail(ErrorCode::kUnavailable, "the host '" + host + "' cannot be found");
    std::vector<protocol::HostAddress> addresses;
    for (const std::string& number : numbers) addresses.push_back(protocol::look_up_host(number)->front());
    return addresses;
  };
}

bool has_ipv6() { return protocol::listen_on_host({.host = "::1", .port = 0}).has_value(); }

bool accepts(const std::string& number, uint16_t port) {
  return connect_to_host({.host = number, .port = port}, kSocketTimeoutMs).has_value();
}

TEST(ListenOnHost, TakesEveryAddressOfTheNameByOnePort) {
  const auto listeners = protocol::listen_on_host({.host = "both", .port = 0}, resolver_of({"::1", "127.0.0.1"}));
  ASSERT_TRUE(listeners) << listeners.error().message;
  EXPECT_TRUE(accepts("127.0.0.1", listeners->port));
  EXPECT_EQ(accepts("::1", listeners->port), has_ipv6());
}

TEST(ListenOnHost, SkipsForeignAddressesIfOneIsLocal) {
  const auto partly =
      protocol::listen_on_host({.host = "partly", .port = 0}, resolver_of({"203.0.113.7", "127.0.0.1"}));
  ASSERT_TRUE(partly);
  EXPECT_TRUE(accepts("127.0.0.1", partly->port));
  EXPECT_EQ(protocol::listen_on_host({.host = "elsewhere", .port = 0}, resolver_of({"203.0.113.7"})).error().code,
            ErrorCode::kIo);
  const auto unknown = protocol::listen_on_host({.host = "nowhere", .port = 0}, resolver_of({}));
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("'nowhere' cannot be found"));
}

TEST(ListenOnHost, APortInUseOnOneOfTheAddressesIsAConflict) {
  const auto taken = protocol::listen_on_host({.host = "127.0.0.2", .port = 0});
  ASSERT_TRUE(taken);
  const auto second =
      protocol::listen_on_host({.host = "two", .port = taken->port}, resolver_of({"127.0.0.1", "127.0.0.2"}));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
}

TEST(ConnectToHost, TriesEveryAddress) {
  const auto listeners = protocol::listen_on_host({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(listeners);
  for (const auto& order : std::vector<std::vector<std::string>>{
           {"127.0.0.1"}, {"::1", "127.0.0.1"}, {"127.0.0.66", "::1", "127.0.0.1"}, {"127.0.0.1", "::1"}}) {
    EXPECT_TRUE(connect_to_host({.host = "name", .port = listeners->port}, kSocketTimeoutMs, resolver_of(order)))
        << ::testing::PrintToString(order);
  }
  const auto nobody =
      connect_to_host({.host = "name", .port = listeners->port}, kSocketTimeoutMs, resolver_of({"127.0.0.66"}));
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(nobody.error().message, HasSubstr("refused"));
}

}  // namespace
}  // namespace millrace::monitoring
