#include "switch_agg/bench/aggregator_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "protocol/datagram/extensions.h"
#include "switch_agg/bench/traffic.h"
#include "switch_agg/process/packet_loop.h"

namespace millrace::switch_agg {
namespace {

BenchWorkers::Options small_options(BenchDraw draw) {
  return {.job = bench_job(3, 4, 640), .entries = 20, .packet_bytes = 1400, .seed = 5, .draw = draw};
}

/// The sum of a turn's packets, as they decode.
std::map<uint16_t, int32_t> sum_of(const PacketList& packets, uint32_t window_indices) {
  std::vector<uint16_t> indices(protocol::kFragmentEntriesMax);
  std::vector<int32_t> values(protocol::kFragmentEntriesMax);
  std::map<uint16_t, int32_t> sum;
  for (size_t at = 0; at < packets.size(); ++at) {
    const auto datagram = protocol::parse_datagram(packets[at]);
    EXPECT_TRUE(datagram);
    const auto count = decode_window(datagram->header, datagram->payload, window_indices, {indices, values});
    EXPECT_TRUE(count);
    for (uint32_t i = 0; i < count.value_or(0); ++i) sum[indices[i]] += values[i];
  }
  return sum;
}

TEST(BenchWorkers, IsSumAcceptsOnlyTheExactSum) {
  for (const BenchDraw draw : {BenchDraw::kOwn, BenchDraw::kSame}) {
    BenchWorkers workers(small_options(draw));
    workers.sign_for_nobody();
    PacketList packets;
    workers.append(9, 2, packets);
    EXPECT_EQ(packets.size(), 3u);
    const std::map<uint16_t, int32_t> sum = sum_of(packets, 640);
    EXPECT_EQ(sum.size() == 20u, draw == BenchDraw::kSame);
    std::vector<uint16_t> indices;
    std::vector<int32_t> values;
    for (const auto& [index, value] : sum) {
      indices.push_back(index);
      values.push_back(value);
    }
    EXPECT_TRUE(workers.is_sum(9, 2, indices, values)) << static_cast<int>(draw) << ::testing::PrintToString(sum);
    EXPECT_FALSE(workers.is_sum(8, 2, indices, values)) << "of another turn";
    EXPECT_FALSE(workers.is_sum(9, 1, indices, values)) << "of another slot";
    EXPECT_FALSE(workers.is_sum(9, 2, std::span(indices).first(indices.size() - 1), values)) << "an index is missing";
    ++values.back();
    EXPECT_FALSE(workers.is_sum(9, 2, indices, values)) << "a wrong value";
    --values.back();
    indices.push_back(639);
    values.push_back(1);
    EXPECT_FALSE(workers.is_sum(9, 2, indices, values)) << "an index too many";
  }
}

TEST(BenchWorkers, TheirTurnsFollowTheirStripes) {
  const BenchWorkers workers(small_options(BenchDraw::kOwn));
  for (uint64_t turn = 1; turn < 40; ++turn) {
    const protocol::DatagramHeader now = workers.header_of(turn, 3);
    const protocol::DatagramHeader next = workers.header_of(turn + 1, 3);
    EXPECT_EQ(now.window % 4, 3u);
    if (now.next == protocol::kNoWindow) {
      EXPECT_EQ(next.step, now.step + 1);
      EXPECT_EQ(next.window, 3u);
    } else {
      EXPECT_EQ(next.step, now.step);
      EXPECT_EQ(next.window, now.next);
    }
  }
}

TEST(Bench, AWindowFillsItsPacket) {
  const uint32_t window = filling_window(0.01, 1400, 1);
  EXPECT_EQ(window % 64, 0u);
  BenchWorkers workers({.job = bench_job(4, 1, window), .entries = entries_in(window, 0.01), .packet_bytes = 1400});
  workers.sign_for_nobody();
  PacketList packets;
  for (uint64_t turn = 1; turn <= 10; ++turn) workers.append(turn, 0, packets);
  EXPECT_GE(packets.size(), 40u);
  EXPECT_LE(packets.size(), 44u) << "a few draws may need a second fragment";
  EXPECT_GT(packets.bytes(), 40 * size_t{1300});
  for (size_t at = 0; at < packets.size(); ++at) EXPECT_LE(packets[at].size(), 1400u);
}

TEST(Bench, EverySumIsChecked) {
  const BenchOptions options = {
      .pmd = "memory", .workers = 3, .slots = 4, .window_indices = 640, .density = 0.05, .packets = 1000, .repeats = 2};
  const auto report = run_bench(options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->turns_checked, 2u * (1000 / 12) * 4);
  EXPECT_EQ(report->packets, report->turns_checked * 3);
  EXPECT_GT(report->results, 0u);
  EXPECT_GT(report->mentries_s, 0);
  const nlohmann::json json = nlohmann::json::parse(bench_json(options, *report));
  for (const char* field : {"mentries_s", "mpackets_s", "gbit_s", "read_gbit_s", "read_ratio"})
    EXPECT_TRUE(json[field].is_number()) << field;
}

TEST(Bench, ManyWorkersFitOnTheWire) {
  const auto report =
      run_bench({.pmd = "memory", .workers = 64, .slots = 3, .window_indices = 6400, .packets = 1000, .repeats = 1});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->turns_checked, 1000u / (64 * 3) * 3);
}

}  // namespace
}  // namespace millrace::switch_agg
