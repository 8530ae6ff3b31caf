#include "worker/bench/kernels/codec_bench.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/methods/methods.h"
#include "tests/worker/bench/savez.h"
#include "worker/bench/kernels/trace.h"

namespace millrace::bench {
namespace {

nlohmann::json codec_bench_row_of(const nlohmann::json& report, const std::string& algorithm) {
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
    const nlohmann::json report = bench_codec(options).value();
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
    for (const ValueCodec* codec : value_codecs()) {
      if (codec->name() == "raw") {
        expected.emplace_back("f32");
      } else if (codec->name() == "qsgd") {
        for (const char* word : {"qsgd2", "qsgd4", "qsgd8"}) expected.emplace_back(word);
      } else {
        expected.push_back(codec->text({}));
      }
    }
    for (const Method& method : methods()) expected.emplace_back(method.name);
    expected.emplace_back("three_lc");  // on a whole gradient
    EXPECT_EQ(algorithms, expected);
    for (const char* word : {"f16", "bf16", "sign_mean", "terngrad", "onebit", "qsgd_elias4", "deflate"}) {
      EXPECT_EQ(std::ranges::count(algorithms, word), 1) << word;
    }
  }
}

TEST(CodecBenchTest, SizesAndErrorsAreThoseOfTheCodecs) {
  const nlohmann::json report = bench_codec({.n = 1 << 20, .density = 0.01, .repeats = 1}).value();
  const double entropy = codec_bench_row_of(report, "gap").at("entropy_bits_per_index");
  EXPECT_NEAR(entropy, 8.08, 0.1);  // H(0.01) / 0.01
  EXPECT_EQ(codec_bench_row_of(report, "raw").at("bits_per_index"), 32.0);
  EXPECT_LE(codec_bench_row_of(report, "gap").at("bits_per_index").get<double>(), 1.03 * entropy);
  EXPECT_GT(codec_bench_row_of(report, "bloom_p0").at("decoded_over_k").get<double>(),
            1.05);  // 0.001 of the others: 1.1
  EXPECT_EQ(codec_bench_row_of(report, "f32").at("relative_error"), 0.0);
  double last = 2;
  for (const char* algorithm : {"qsgd2", "qsgd4", "qsgd8"}) {
    const double error = codec_bench_row_of(report, algorithm).at("relative_error");
    EXPECT_LT(error, last) << algorithm;
    EXPECT_GT(error, 0) << algorithm;
    last = error;
  }
  EXPECT_EQ(codec_bench_row_of(report, "deflate").at("relative_error"), 0.0);
  EXPECT_LT(codec_bench_row_of(report, "f16").at("relative_error"), 1e-3);
  EXPECT_LT(codec_bench_row_of(report, "bf16").at("relative_error"), 8e-3);
  EXPECT_NEAR(codec_bench_row_of(report, "onebit").at("relative_error"), std::sqrt(1 - 2 / M_PI), 0.01);
  EXPECT_NEAR(codec_bench_row_of(report, "sign_mean").at("relative_error"), std::sqrt(1 - 2 / M_PI), 0.01);
  for (const char* contraction : {"f16", "bf16", "sign_mean", "onebit"}) {
    EXPECT_LT(codec_bench_row_of(report, contraction).at("residual_over_gradient"), 1.0) << contraction;
  }
  EXPECT_GT(codec_bench_row_of(report, "terngrad").at("residual_over_gradient"), 3.0);
  // deploy/OPERATING.md's limit of error feedback with 2 bits, and that 4 and 8 do not have it.
  EXPECT_GT(codec_bench_row_of(report, "qsgd2").at("residual_over_gradient"), 3.0);
  EXPECT_LT(codec_bench_row_of(report, "qsgd4").at("residual_over_gradient"), 1.0);
  EXPECT_LT(codec_bench_row_of(report, "qsgd8").at("residual_over_gradient"), 0.1);
}

TEST(CodecBenchTest, MethodsAreMeasuredWithTheirTablesAndHeadersOnTheSameEntries) {
  const nlohmann::json report = bench_codec({.n = 1 << 20, .density = 0.01, .repeats = 1}).value();
  const auto method = [&](const std::string& name) {
    for (const nlohmann::json& row : report.at("rows")) {
      if (row.at("algorithm") == name && row.at("kind") == "method") return row;
    }
    ADD_FAILURE() << "no method " << name;
    return report;
  };
  const double k = report.at("k");
  EXPECT_NEAR(method("dgc").at("bits_per_entry").get<double>(), 64 + 512 / k, 1e-9);
  EXPECT_EQ(method("dgc").at("relative_error"), 0.0);
  // 10 bits of flag and delta and more for deltas over a byte; 6 of tag and sketch; 256 buckets of 4 bytes.
  EXPECT_NEAR(method("sketchml").at("bits_per_entry").get<double>(), 16 + 8 * std::exp(-2.56) + 8192 / k, 0.2);
  EXPECT_LT(method("skcompress").at("bits_per_entry"), method("sketchml").at("bits_per_entry"));
  const nlohmann::json& whole = report.at("rows").back();
  EXPECT_EQ(whole.at("kind"), "method_dense");
  EXPECT_LT(whole.at("bits_per_entry"), 1.6);  // five values a byte at most, and runs of zeros
  EXPECT_LT(whole.at("relative_error"), 1.0);
  EXPECT_EQ(method("skcompress").at("relative_error"), method("sketchml").at("relative_error"));
  for (const char* lossy : {"three_lc", "sketchml", "deepreduce_p0_qsgd"}) {
    EXPECT_GT(method(lossy).at("relative_error"), 0.0) << lossy;
    EXPECT_LT(method(lossy).at("relative_error"), 1.0) << lossy;
  }
}

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override { path_ = ::testing::TempDir() + "/millrace_trace_" + std::to_string(::getpid()) + ".npz"; }
  void TearDown() override { std::remove(path_.c_str()); }
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  static std::string header(const std::string& shape, const std::string& type = "<f4") {
    return "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }      \n";
  }
  std::string path_;
};

TEST_F(TraceTest, ARowOfTheArrayIsReadAndBenched) {
  std::vector<float> values(600);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 2 == 0 ? i : 0) + 0.5F;
  const std::string layers = savez("layers.npy", header("1, 3"), {1, 2, 3});
  write(layers.substr(0, layers.size() - 4) + savez("accumulator.npy", header("2, 300"), values));
  const auto row = read_trace(path_, 1);
  ASSERT_TRUE(row) << row.error().message;
  EXPECT_TRUE(std::equal(row->begin(), row->end(), values.begin() + 300, values.end()));
  EXPECT_EQ(read_trace(path_, 2).error().code, ErrorCode::kInvalidArgument);
  const nlohmann::json report = bench_codec({.density = 0.1, .repeats = 1, .trace = path_, .worker = 1}).value();
  EXPECT_EQ(report.at("n"), 300);
  EXPECT_EQ(report.at("k"), 30);  // every second of the last 60: 29 gaps of 1 and one of 240
  double best = 1e9;
  for (int shift = 0; shift < 32; ++shift)
    best = std::min(best, 30.0 * (1 + shift) + (240 >> shift) + 29 * (1 >> shift));
  EXPECT_DOUBLE_EQ(report.at("rice_blocks_bits_per_index").get<double>(), (best + 5) / 30);
  const nlohmann::json& rice = codec_bench_row_of(report, "rice");
  EXPECT_DOUBLE_EQ(rice.at("bits_per_index").get<double>() * 30, 8 + 8 * std::ceil(best / 8));
  EXPECT_DOUBLE_EQ(rice.at("over_rice_blocks").get<double>(), (8 + 8 * std::ceil(best / 8)) / (best + 5));
}

TEST_F(TraceTest, EveryCutAndOtherFilesAreErrors) {
  EXPECT_EQ(read_trace(path_ + ".not", 0).error().code, ErrorCode::kIo);
  const std::string whole = savez("accumulator.npy", header("1, 20"), std::vector<float>(20, 1));
  for (size_t length = 0; length + 4 < whole.size(); ++length) {
    write(whole.substr(0, length));
    const auto row = read_trace(path_, 0);
    ASSERT_FALSE(row) << length;
    EXPECT_EQ(row.error().code, ErrorCode::kMalformed);
  }
  for (const std::string& other :
       {savez("accumulator.npy", header("1, 21"), std::vector<float>(20, 1)),
        savez("accumulator.npy", header("1, 19"), std::vector<float>(20, 1)),
        savez("accumulator.npy", header("1, 20", "<f8"), std::vector<float>(20, 1)),
        savez("accumulator.npy", header("20,"), std::vector<float>(20, 1)),
        savez("accumulator.npy", header("0, 20"), {}), savez("accumulator.npy", header("1, 0"), {}),
        savez("accumulator.npy", header("99999999999999999999, 4"), std::vector<float>(20, 1)),
        savez("other.npy", header("1, 20"), std::vector<float>(20, 1)), std::string("PK\x03\x04")}) {
    write(other);
    EXPECT_EQ(read_trace(path_, 0).error().code, ErrorCode::kMalformed);
  }
}

TEST_F(TraceTest, MoreEntriesThanAreBenchedAreRefusedBeforeTheyAreRead) {
  for (const uint64_t n : {kTraceColumnsMax, kTraceColumnsMax + 1}) {
    std::string whole = savez("accumulator.npy", header("1, " + std::to_string(n)), {});
    const uint64_t npy_bytes = whole.find('\n') + 1 - whole.find("\x93NUMPY") + 4 * n;
    std::memcpy(whole.data() + whole.find("\x93NUMPY") - sizeof(npy_bytes), &npy_bytes, sizeof(npy_bytes));
    write(whole);
    EXPECT_EQ(read_trace(path_, 0).error().code,
              n > kTraceColumnsMax ? ErrorCode::kLimitExceeded : ErrorCode::kMalformed);
  }
}

}  // namespace
}  // namespace millrace::bench
