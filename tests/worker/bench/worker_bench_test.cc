#include "worker/bench/rounds/session_core_bench.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace millrace::bench {
namespace {

TEST(WorkerBenchTest, EveryRowHasItsFiguresForAwkwardSizesToo) {
  for (const WorkerBenchOptions& options :
       {WorkerBenchOptions{.n = 100'000, .parts = 4, .repeats = 3},
        WorkerBenchOptions{.n = 64, .density = 1e-9, .parts = 64, .repeats = 1},
        WorkerBenchOptions{.n = 1'000, .density = 0.25, .parts = 1, .repeats = 2}}) {
    const nlohmann::json report = bench_worker(options);
    EXPECT_EQ(report.at("bench"), "worker");
    ASSERT_EQ(report.at("rows").size(), 4u);
    for (const nlohmann::json& row : report.at("rows")) {
      EXPECT_GT(row.at("round_ms").get<double>(), 0);
      for (const auto& [key, value] : row.items())
        EXPECT_TRUE(!value.is_number() || std::isfinite(value.get<double>())) << row.at("algorithm") << key;
    }
  }
}

TEST(WorkerBenchTest, UncarriedEntriesAreSentAgain) {
  const nlohmann::json report = bench_worker({.n = 1'000'000, .density = 0.01, .parts = 8, .repeats = 5});
  const nlohmann::json& all = report.at("rows").at(0);
  const nlohmann::json& half = report.at("rows").at(1);
  EXPECT_EQ(all.at("algorithm"), "all_carried");
  EXPECT_EQ(all.at("entries_sent"), all.at("entries_pushed"));
  EXPECT_EQ(half.at("algorithm"), "half_carried");
  // Indices drawn twice make one entry: a little less than twice as many.
  EXPECT_NEAR(half.at("entries_sent").get<double>(), 20'000, 400);
}

TEST(WorkerBenchTest, OfADensePushTheDensityIsSent) {
  const nlohmann::json report = bench_worker({.n = 100'000, .density = 0.01, .parts = 8, .repeats = 2});
  for (const size_t at : {2u, 3u}) {
    const nlohmann::json& row = report.at("rows").at(at);
    EXPECT_EQ(row.at("algorithm"), at == 2 ? "dense_1_thread" : "dense_2_threads");
    EXPECT_EQ(row.at("entries_pushed"), 100'000);
    EXPECT_EQ(row.at("entries_sent"), 1'000);
    EXPECT_GT(row.at("addition_ms").get<double>(), 0);
  }
}

}  // namespace
}  // namespace millrace::bench
