#include "worker/bench/kernels/select_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/worker/bench/savez.h"
#include "tests/worker/temporary_folder.h"

namespace millrace::bench {
namespace {

nlohmann::json report_of(const SelectBenchOptions& options) {
  const auto report = bench_select(options);
  EXPECT_TRUE(report.has_value()) << report.error().message;
  return report.value_or(nlohmann::json());
}

nlohmann::json select_bench_row_of(const nlohmann::json& report, const std::string& algorithm) {
  for (const nlohmann::json& row : report.at("rows")) {
    if (row.at("algorithm") == algorithm) return row;
  }
  ADD_FAILURE() << "no row " << algorithm;
  return {};
}

TEST(SelectBenchTest, EveryRowHasItsFiguresForAwkwardSizesToo) {
  for (const SelectBenchOptions& options :
       {SelectBenchOptions{.n = 20'000, .repeats = 3}, SelectBenchOptions{.n = 1, .density = 1, .repeats = 1},
        SelectBenchOptions{.n = 300, .density = 1e-6, .repeats = 2}}) {
    const nlohmann::json report = report_of(options);
    EXPECT_EQ(report.at("bench"), "select");
    EXPECT_EQ(report.at("n"), options.n);
    EXPECT_EQ(report.at("threads"), 1);
    std::vector<std::string> algorithms;
    for (const nlohmann::json& row : report.at("rows")) {
      algorithms.push_back(row.at("algorithm"));
      EXPECT_GT(row.at("ms").get<double>(), 0);
      EXPECT_GT(row.at("ratio_to_read_pass").get<double>(), 0);
    }
    EXPECT_THAT(algorithms, ::testing::IsSupersetOf({"read_pass", "exact", "trimmed", "binary_search", "sampled",
                                                     "radix", "threshold_reuse", "bucket", "fixed", "by_size"}));
    for (const char* exact : {"exact", "trimmed", "radix", "fixed"}) {
      EXPECT_EQ(select_bench_row_of(report, exact).at("selected_over_k"), 1.0) << exact;
    }
    const double between = select_bench_row_of(report, "binary_search").at("selected_over_k");
    EXPECT_GE(between, 1.0);
    EXPECT_LE(between, 2.0);
  }
}

TEST(SelectBenchTest, ReuseStaysNearKOverEveryStepOfTheDrift) {
  const nlohmann::json reuse =
      select_bench_row_of(report_of({.n = 200'000, .density = 0.01, .repeats = 1}), "threshold_reuse");
  EXPECT_EQ(reuse.at("steps"), 68);
  EXPECT_EQ(reuse.at("exact_steps"), 3);
  EXPECT_GE(reuse.at("selected_over_k_min").get<double>(), 0.85);
  EXPECT_LE(reuse.at("selected_over_k_max").get<double>(), 1.15);
}

std::string trace_of(const std::vector<float>& values) {
  return savez("accumulator.npy",
               "{'descr': '<f4', 'fortran_order': False, 'shape': (1, " + std::to_string(values.size()) + "), }",
               values);
}

TEST(SelectBenchTest, ATraceIsRepeatedUpToN) {
  const TemporaryFolder folder;
  std::vector<float> values(1000, 0.001F);
  values[7] = -3;
  values[500] = 2;
  const std::string path = folder.write("trace.npz", trace_of(values));
  const nlohmann::json report = report_of({.n = 5500, .density = 0.002, .repeats = 1, .trace = path});
  EXPECT_EQ(report.at("trace_n"), 1000);
  EXPECT_EQ(report.at("k"), 11);
  // 6 of the first and 5 of the second: what reaches the threshold of the 11-th largest is these, and nothing else.
  EXPECT_EQ(select_bench_row_of(report, "fixed").at("selected_over_k"), 1.0);
  EXPECT_EQ(select_bench_row_of(report, "exact").at("selected_over_k"), 1.0);
}

TEST(SelectBenchTest, ATraceThatIsNotThereOrNotFiniteIsAnError) {
  const TemporaryFolder folder;
  EXPECT_EQ(bench_select({.n = 100, .trace = folder / "none.npz"}).error().code, ErrorCode::kIo);
  const std::string path = folder.write("trace.npz", trace_of({1, std::numeric_limits<float>::infinity()}));
  EXPECT_EQ(bench_select({.n = 100, .trace = path}).error().code, ErrorCode::kNonFinite);
}

}  // namespace
}  // namespace millrace::bench
