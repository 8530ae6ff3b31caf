#include "worker/cli/bench/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"

namespace millrace::cli {
namespace {

const nlohmann::json& row_of(const nlohmann::json& report, const std::string& algorithm) {
  for (const nlohmann::json& row : report.at("rows")) {
    if (row.at("algorithm") == algorithm) return row;
  }
  ADD_FAILURE() << "no row " << algorithm;
  return report;
}

TEST(CodecBenchTest, EveryRowHasItsFiguresForAwkwardSizesToo) {
  for (const CodecBenchOptions& options :
       {CodecBenchOptions{.n = 20'000, .repeats = 3}, CodecBenchOptions{.n = 1, .density = 1, .repeats = 1},
        CodecBenchOptions{.n = 300, .density = 1e-6, .repeats = 1}}) {
    const nlohmann::json report = bench_codec(options);
    EXPECT_EQ(report.at("bench"), "codec");
    EXPECT_EQ(report.at("n"), options.n);
    std::vector<std::string> algorithms;
    for (const nlohmann::json& row : report.at("rows")) {
      algorithms.push_back(row.at("algorithm"));
      for (const auto& [key, value] : row.items()) {
        EXPECT_TRUE(!value.is_number() || std::isfinite(value.get<double>())) << row.at("algorithm") << key;
      }
    }
    std::vector<std::string> expected = {"memcpy"};
    for (const IndexCodec* codec : index_codecs()) expected.emplace_back(codec->name());
    for (const char* value : {"f32", "qsgd2", "qsgd4", "qsgd8"}) expected.emplace_back(value);
    EXPECT_EQ(algorithms, expected);
  }
}

TEST(CodecBenchTest, SizesAndErrorsAreThoseOfTheCodecs) {
  const nlohmann::json report = bench_codec({.n = 1 << 20, .density = 0.01, .repeats = 1});
  const double entropy = row_of(report, "gap").at("entropy_bits_per_index");
  EXPECT_NEAR(entropy, 8.08, 0.1);  // H(0.01) / 0.01
  EXPECT_EQ(row_of(report, "raw").at("bits_per_index"), 32.0);
  EXPECT_LE(row_of(report, "gap").at("bits_per_index").get<double>(), 1.03 * entropy);
  EXPECT_GT(row_of(report, "bloom").at("decoded_over_k").get<double>(), 1.05);  // 0.001 of the others: 1.1
  EXPECT_EQ(row_of(report, "f32").at("relative_error"), 0.0);
  double last = 2;
  for (const char* algorithm : {"qsgd2", "qsgd4", "qsgd8"}) {
    const double error = row_of(report, algorithm).at("relative_error");
    EXPECT_LT(error, last) << algorithm;
    EXPECT_GT(error, 0) << algorithm;
    last = error;
  }
  // README's limit of error feedback with 2 bits, and that 4 and 8 do not have it.
  EXPECT_GT(row_of(report, "qsgd2").at("residual_over_gradient"), 3.0);
  EXPECT_LT(row_of(report, "qsgd4").at("residual_over_gradient"), 1.0);
  EXPECT_LT(row_of(report, "qsgd8").at("residual_over_gradient"), 0.1);
}

}  // namespace
}  // namespace millrace::cli
