#include "worker/bench/kernels/reduce_bench.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace::bench {
namespace {

TEST(ReduceBenchTest, EveryRowHasItsFiguresForAwkwardSizesToo) {
  for (const ReduceBenchOptions& options :
       {ReduceBenchOptions{.n = 20'000, .repeats = 3},
        ReduceBenchOptions{.n = 1, .density = 1, .workers = 1, .repeats = 1},
        ReduceBenchOptions{.n = 300, .density = 1e-6, .workers = 9, .repeats = 1}}) {
    const nlohmann::json report = bench_reduce(options);
    EXPECT_EQ(report.at("bench"), "reduce");
    EXPECT_EQ(report.at("n"), options.n);
    std::vector<std::string> algorithms;
    for (const nlohmann::json& row : report.at("rows")) {
      algorithms.push_back(row.at("algorithm"));
      EXPECT_GT(row.at("mentries_s").get<double>(), 0);
      EXPECT_GT(row.at("ratio_to_memory_pass").get<double>(), 0);
    }
    EXPECT_EQ(algorithms, (std::vector<std::string>{"memory_pass", "sum_two", "sum_many", "sum_at_least", "not_carried",
                                                    "add_scaled", "accumulate", "histogram", "select_by_cut"}));
  }
}

TEST(ReduceBenchTest, TheStreamsHaveTheDensityAskedFor) {
  const ReduceBenchOptions options{.n = 1'000'000, .density = 0.01, .workers = 4, .repeats = 1};
  const nlohmann::json report = bench_reduce(options);
  // Binomial: 40,000 expected, standard deviation 199.
  EXPECT_NEAR(report.at("rows").at(2).at("entries").get<double>(), 40'000, 1000);
}

}  // namespace
}  // namespace millrace::bench
