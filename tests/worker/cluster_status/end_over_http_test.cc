#include "worker/cluster_status/end_over_http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "monitoring/http/http_port.h"

namespace millrace::cluster_status {
namespace {

using program::ExitCode;
using ::testing::HasSubstr;

TEST(EndOverHttp, APathHasEveryByteOfTheName) {
  EXPECT_EQ(end_path("night-1_a.b~"), "/jobs/night-1_a.b~/end");
  EXPECT_EQ(end_path("a/b ?%#\xc3\xa4"), "/jobs/a%2Fb%20%3F%25%23%C3%A4/end");
}

TEST(EndOverHttp, EachAnswerHasItsExitCode) {
  int status = 200;
  std::string body;
  monitoring::HttpHandlers handlers{.metrics_text = [] { return std::string(); },
                                    .unhealthy = [] { return std::optional<std::string>(); },
                                    .status_json = [] { return std::string("{}"); }};
  handlers.answer_reader = [&](const monitoring::HttpRequest& request) {
    body = request.method + " " + request.path + " " + request.body;
    return monitoring::HttpAnswer{.status = status, .body = "a sentence\x1b[0m\nand more\n"};
  };
  auto port = monitoring::HttpPort::start("127.0.0.1:0", "--http", std::move(handlers));
  ASSERT_TRUE(port);
  const auto ended = [&] { return end_over_http((*port)->address(), "night", "wrong \"data\"", nullptr); };
  EXPECT_TRUE(ended());
  EXPECT_EQ(body, R"(POST /jobs/night/end {"reason":"wrong \"data\""})");
  EXPECT_TRUE(end_over_http((*port)->address(), "night", "", nullptr));
  EXPECT_EQ(body, "POST /jobs/night/end ");
  const std::map<int, ExitCode> codes = {
      {404, ExitCode::kUsage},   {401, ExitCode::kRefused},     {403, ExitCode::kRefused},    {405, ExitCode::kRefused},
      {413, ExitCode::kRefused}, {500, ExitCode::kUnreachable}, {503, ExitCode::kUnreachable}};
  for (const auto& [answered, code] : codes) {
    status = answered;
    const auto outcome = ended();
    ASSERT_FALSE(outcome) << answered;
    EXPECT_EQ(outcome.error().code, code) << answered;
    EXPECT_THAT(outcome.error().message, ::testing::EndsWith(": a sentence?[0m")) << "one line of plain text";
  }
  (*port)->stop();
  EXPECT_EQ(ended().error().code, ExitCode::kUnreachable);
  EXPECT_EQ(end_over_http("nowhere", "night", "", nullptr).error().code, ExitCode::kUsage);
}

}  // namespace
}  // namespace millrace::cluster_status
