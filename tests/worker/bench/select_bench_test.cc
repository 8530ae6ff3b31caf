#include "worker/cli/bench/select.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace::cli {
namespace {

TEST(SelectBenchTest, EveryRowHasItsFiguresForAwkwardSizesToo) {
  for (const SelectBenchOptions& options :
       {SelectBenchOptions{.n = 20'000, .repeats = 3}, SelectBenchOptions{.n = 1, .density = 1, .repeats = 1},
        SelectBenchOptions{.n = 300, .density = 1e-6, .repeats = 2}}) {
    const nlohmann::json report = bench_select(options);
    EXPECT_EQ(report.at("bench"), "select");
    EXPECT_EQ(report.at("n"), options.n);
    EXPECT_EQ(report.at("threads"), 1);
    std::vector<std::string> algorithms;
    for (const nlohmann::json& row : report.at("rows")) {
      algorithms.push_back(row.at("algorithm"));
      EXPECT_GT(row.at("ms").get<double>(), 0);
      EXPECT_GT(row.at("ratio_to_read_pass").get<double>(), 0);
    }
    EXPECT_EQ(algorithms,
              (std::vector<std::string>{"read_pass", "exact", "threshold", "bucket_topk", "threshold_reuse"}));
    EXPECT_EQ(report.at("rows").at(1).at("selected_over_k"), 1.0);
  }
}

TEST(SelectBenchTest, ReuseStaysNearKOverEveryStepOfTheDrift) {
  const nlohmann::json report = bench_select({.n = 200'000, .density = 0.01, .repeats = 1});
  const nlohmann::json& reuse = report.at("rows").at(4);
  EXPECT_GE(reuse.at("selected_over_k_min").get<double>(), 0.85);
  EXPECT_LE(reuse.at("selected_over_k_max").get<double>(), 1.15);
}

}  // namespace
}  // namespace millrace::cli
