#include "switch_agg/process/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "protocol/address/endpoint_text.h"
#include "protocol/datagram/key.h"

namespace millrace::switch_agg {
namespace {

using ::testing::HasSubstr;

struct Parsed {
  std::variant<RunOptions, int> result;
  std::string out;
  std::string error;
};

Parsed parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "millrace-switch");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  auto result = parse_options(static_cast<int>(arguments.size()), arguments.data());
  std::string out = ::testing::internal::GetCapturedStdout();
  return {std::move(result), std::move(out), ::testing::internal::GetCapturedStderr()};
}

/// The arguments are wrong: exit code 2, one line on stderr with `sentence`.
void expect_usage(std::vector<const char*> arguments, const char* sentence) {
  const Parsed parsed = parse(std::move(arguments));
  ASSERT_TRUE(std::holds_alternative<int>(parsed.result)) << sentence;
  EXPECT_EQ(std::get<int>(parsed.result), 2);
  EXPECT_THAT(parsed.error, HasSubstr(sentence));
  EXPECT_THAT(parsed.error, ::testing::EndsWith("; see millrace-switch --help\n"));
  EXPECT_EQ(std::ranges::count(parsed.error, '\n'), 1);
}

TEST(SwitchOptions, RunHasDefaults) {
  const Parsed parsed = parse({"run", "--jobs", "jobs.json"});
  ASSERT_TRUE(std::holds_alternative<RunOptions>(parsed.result)) << parsed.error;
  const auto& options = std::get<RunOptions>(parsed.result);
  EXPECT_EQ(endpoint_text(options.listen), "127.0.0.1:7700");
  EXPECT_EQ(options.jobs_file, "jobs.json");
  EXPECT_EQ(options.pmd, "kernel");
  EXPECT_EQ(options.lcores, 1u);
  EXPECT_EQ(options.limits.packet_bytes_max, 1472u);
}

TEST(SwitchOptions, EverythingForDpdkIsPassedOn) {
  const Parsed parsed = parse({"run", "--jobs", "j", "--listen", "10.0.0.1:7700", "--pmd", "net_af_packet,iface=eth1",
                               "--lcores", "2", "--gateway", "10.0.0.254", "--prefix-bits", "16", "--huge-pages"});
  ASSERT_TRUE(std::holds_alternative<RunOptions>(parsed.result)) << parsed.error;
  const DpdkOptions& dpdk = std::get<RunOptions>(parsed.result).dpdk;
  EXPECT_EQ(dpdk.device, "net_af_packet,iface=eth1");
  EXPECT_EQ(dpdk.address, (Ipv4Address{10, 0, 0, 1}));
  EXPECT_EQ(dpdk.prefix_bits, 16u);
  EXPECT_EQ(dpdk.gateway, (Ipv4Address{10, 0, 0, 254}));
  EXPECT_EQ(dpdk.port, 7700);
  EXPECT_EQ(dpdk.lanes, 2u);
  EXPECT_EQ(dpdk.memory, DpdkMemory::kHugePages);
}

TEST(SwitchOptions, HelpAndVersionSayWhetherThereIsDpdk) {
  const std::string dpdk = dpdk_version().empty() ? "without DPDK" : "with DPDK " + std::string(dpdk_version());
  const std::string macs = ", MACs by " + std::string(protocol::datagram_mac_library());
  for (const char* flag : {"--help", "--version"}) {
    const Parsed parsed = parse({flag});
    ASSERT_TRUE(std::holds_alternative<int>(parsed.result));
    EXPECT_EQ(std::get<int>(parsed.result), 0);
    EXPECT_THAT(parsed.out, HasSubstr(dpdk + macs)) << flag;
  }
  EXPECT_THAT(parse({"run", "--help"}).out, HasSubstr("--lcores"));
}

TEST(SwitchOptions, WrongArgumentsAreNamed) {
  expect_usage({}, "subcommand");
  expect_usage({"walk"}, "subcommand");
  expect_usage({"run"}, "--jobs");
  expect_usage({"run", "--jobs", "j", "--frobnicate"}, "--frobnicate");
  expect_usage({"run", "--jobs", "j", "--listen", "localhost:1"}, "'localhost:1' is not an address");
  expect_usage({"run", "--jobs", "j", "--http", "9090"}, "--http");
  expect_usage({"run", "--jobs", "j", "--lcores", "0"}, "--lcores");
  expect_usage({"run", "--jobs", "j", "--packet-bytes-max", "9000"}, "--packet-bytes-max");
  expect_usage({"run", "--jobs", "j", "--slots-max", "65536"}, "--slots-max");
  expect_usage({"run", "--jobs", "j", "--gateway", "router"}, "--gateway");
}

TEST(SwitchOptions, LongPacketsGoByDpdkToo) {
  const Parsed parsed = parse({"run", "--jobs", "j", "--listen", "10.0.0.1:7", "--pmd", "net_af_packet,iface=eth1",
                               "--packet-bytes-max", "8972"});
  ASSERT_TRUE(std::holds_alternative<RunOptions>(parsed.result)) << parsed.error;
  EXPECT_EQ(std::get<RunOptions>(parsed.result).dpdk.packet_bytes_max, 8972u);
}

TEST(SwitchOptions, WhatDoesNotGoTogetherIsNamed) {
  expect_usage({"run", "--jobs", "j", "--listen", "[::1]:7700", "--pmd", "net_null"}, "must be IPv4");
  expect_usage({"run", "--jobs", "j", "--listen", "10.0.0.1:0", "--pmd", "net_null"}, "DPDK cannot choose a free port");
  expect_usage({"run", "--jobs", "j", "--listen", "10.0.0.1:7", "--pmd", "net_null", "--gateway", "[::1]"},
               "must be IPv4");
}

}  // namespace
}  // namespace millrace::switch_agg
