#include "monitoring/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "monitoring/http_port.h"

namespace millrace::monitoring {
namespace {

constexpr int kTimeoutMs = 20'000;

std::unique_ptr<HttpPort> port_with_status(const std::string& status) {
  auto port = HttpPort::start("127.0.0.1:0", "--http",
                              {.metrics_text = [] { return std::string(); },
                               .unhealthy = []() -> std::optional<std::string> { return "not yet"; },
                               .status_json = [status] { return status; }});
  EXPECT_TRUE(port);
  return std::move(*port);
}

std::string address_of(const HttpPort& port) { return "127.0.0.1:" + std::to_string(port.port()); }

TEST(HttpGet, ReadsWhatAPortShowsAndItsStatus) {
  const auto port = port_with_status(R"({"shard": 1})");
  const auto status = http_get(address_of(*port), "/status", kTimeoutMs);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(status->status, 200);
  EXPECT_EQ(status->body, R"({"shard": 1})");
  EXPECT_EQ(http_get(address_of(*port), "/healthz", kTimeoutMs)->status, 503);
  EXPECT_EQ(http_get(address_of(*port), "/absent", kTimeoutMs)->status, 404);
}

TEST(HttpGet, ABodyOverTheLimitIsRefused) {
  const auto port = port_with_status(std::string(kHttpReplyBytesMax + 1, 'x'));
  EXPECT_EQ(http_get(address_of(*port), "/status", kTimeoutMs).error().code, ErrorCode::kLimitExceeded);
}

TEST(HttpGet, WhoDoesNotAnswerIsNamed) {
  std::string address;
  {
    const auto port = port_with_status("{}");
    address = address_of(*port);
  }
  const auto reply = http_get(address, "/status", kTimeoutMs);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(reply.error().message, ::testing::StartsWith(address + " does not answer"));
}

TEST(HttpGet, WhatIsNoAddressIsRefused) {
  for (const char* address : {"", "localhost", "localhost:http", "::1:9000"}) {
    EXPECT_EQ(http_get(address, "/status", kTimeoutMs).error().code, ErrorCode::kInvalidArgument) << address;
  }
}

}  // namespace
}  // namespace millrace::monitoring
