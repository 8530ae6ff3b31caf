#include "switch_agg/bench/bench_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "protocol/datagram/endpoint_text.h"

namespace millrace::switch_agg {
namespace {

using ::testing::HasSubstr;

struct ParsedBench {
  std::variant<BenchOptions, LoadOptions, int> result;
  std::string error;
};

ParsedBench parse_bench(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "millrace-switch-bench");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  auto result = parse_bench_options(static_cast<int>(arguments.size()), arguments.data());
  ::testing::internal::GetCapturedStdout();
  return {std::move(result), ::testing::internal::GetCapturedStderr()};
}

/// Expects exit code 2 and one line on stderr with `sentence`.
void expect_bench_usage(std::vector<const char*> arguments, const char* sentence) {
  const ParsedBench parsed = parse_bench(std::move(arguments));
  ASSERT_TRUE(std::holds_alternative<int>(parsed.result)) << sentence;
  EXPECT_EQ(std::get<int>(parsed.result), 2);
  EXPECT_THAT(parsed.error, HasSubstr(sentence));
  EXPECT_THAT(parsed.error, ::testing::EndsWith("; see millrace-switch-bench --help\n"));
  EXPECT_EQ(std::ranges::count(parsed.error, '\n'), 1);
}

TEST(SwitchBenchOptions, TrafficHasDefaultsOfTheFigures) {
  const ParsedBench parsed = parse_bench({"traffic", "--json"});
  ASSERT_TRUE(std::holds_alternative<BenchOptions>(parsed.result)) << parsed.error;
  const auto& options = std::get<BenchOptions>(parsed.result);
  EXPECT_EQ(options.pmd, "net_ring");
  EXPECT_EQ(options.workers, 4u);
  EXPECT_EQ(options.packet_bytes, 1400u);
  EXPECT_EQ(options.density, 0.01);
  EXPECT_TRUE(options.json);
}

TEST(SwitchBenchOptions, LoadNeedsATarget) {
  const ParsedBench parsed = parse_bench({"load", "--to", "10.0.0.1:7700", "--echo"});
  ASSERT_TRUE(std::holds_alternative<LoadOptions>(parsed.result)) << parsed.error;
  EXPECT_EQ(endpoint_text(std::get<LoadOptions>(parsed.result).to), "10.0.0.1:7700");
  EXPECT_TRUE(std::get<LoadOptions>(parsed.result).echo);
  EXPECT_FALSE(std::get<LoadOptions>(parsed.result).apart);
  EXPECT_TRUE(std::get<LoadOptions>(parse_bench({"load", "--to", "10.0.0.1:7700", "--apart"}).result).apart);
  EXPECT_EQ(
      std::get<LoadOptions>(parse_bench({"load", "--to", "10.0.0.1:7700", "--switch-packet-bytes", "8972"}).result)
          .packet_bytes,
      8972u);
  expect_bench_usage({"load", "--to", "10.0.0.1:7700", "--switch-packet-bytes", "9000"}, "--switch-packet-bytes");
  expect_bench_usage({"load", "--to", "10.0.0.1:7700", "--apart", "--echo"}, "--apart");
  expect_bench_usage({"load"}, "--to");
}

TEST(SwitchBenchOptions, WrongArgumentsAreNamed) {
  expect_bench_usage({}, "subcommand");
  expect_bench_usage({"run"}, "subcommand");
  expect_bench_usage({"traffic", "--pmd", "net_null"}, "--pmd");
  expect_bench_usage({"traffic", "--workers", "65"}, "--workers");
}

}  // namespace
}  // namespace millrace::switch_agg
