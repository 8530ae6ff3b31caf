#include "worker/bench/kernels/codec_hostile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "kernels/codec/codec_list.h"
#include "tests/support/index_sets.h"
#include "tests/support/replaced_new.h"
#include "worker/bench/kernels/hostile_codes.h"
#include "worker/bench/kernels/peak_memory.h"

namespace millrace::bench {
namespace {

TEST(CodecHostileBench, EveryCodecHasARowWithItsFigures) {
  for (const CodecBenchOptions& options : {CodecBenchOptions{.n = 1 << 10, .density = 0.02, .repeats = 1},
                                           CodecBenchOptions{.n = 1, .density = 1, .repeats = 1}}) {
    const nlohmann::json report = bench_codec_hostile(options).value();
    EXPECT_EQ(report.at("bench"), "codec_hostile");
    std::multiset<std::string> names;
    for (const nlohmann::json& row : report.at("rows")) {
      names.insert(row.at("algorithm"));
      EXPECT_GT(row.at("cases"), 0) << row;
      for (const char* key : {"good_us", "slowest_good_us", "hostile_us", "ratio"}) {
        ASSERT_TRUE(row.at(key).is_number()) << row;
        EXPECT_TRUE(std::isfinite(row.at(key).get<double>()) && row.at(key) > 0) << row;
      }
    }
    for (const IndexCodec* codec : index_codecs()) EXPECT_TRUE(names.contains(std::string(codec->name())));
    EXPECT_TRUE(names.contains("qsgd2") && names.contains("qsgd8"));
    EXPECT_GE(names.size(), index_codecs().size() + value_codecs().size());
  }
}

TEST(PeakMemory, IncludesMemoryThatHasBeenFreed) {
  const PeakMemory peak;
  if (!peak.bytes()) GTEST_SKIP() << "/proc/self/clear_refs cannot be written here";
  EXPECT_LT(*peak.bytes(), 8u << 20);
  {
    ByteBuffer taken(64u << 20);
    std::memset(taken.data(), 1, taken.size());
    EXPECT_EQ(taken[12'345'678], 1);
  }
  EXPECT_GE(*peak.bytes(), 60u << 20);
  EXPECT_LT(*peak.bytes(), 80u << 20);
}

class HostileIndexCode : public ::testing::TestWithParam<const IndexCodec*> {
 protected:
  static constexpr uint64_t kDimension = 1 << 15;

  static HostileCode good() {
    const IndexBuffer indices = testing::uniform_indices(kDimension, 0.02, 5);
    HostileCode code{"good", {}, indices.size()};
    IndexBuffer said;
    EXPECT_TRUE(GetParam()->encode(indices, kDimension, {}, code.bytes, &said));
    if (!GetParam()->lossless()) code.count = said.size();
    return code;
  }

  template <typename Visit>
  static void visit_all(const HostileCode& code, const Visit& visit) {
    visit_hostile_codes(code.bytes, code.count, kDimension, 3, visit);
    visit_crafted_codes(*GetParam(), code.bytes.size(), kDimension, visit);
  }
};

TEST_P(HostileIndexCode, IsMalformedOrASetAndTakesNoMoreMemoryThanTheDimensionGives) {
  const HostileCode code = good();
  IndexBuffer decoded;
  ASSERT_TRUE(GetParam()->decode(code.bytes, kDimension, code.count, decoded));  // and makes arrays that are made once
  uint64_t cases = 0;
  visit_all(code, [&](const HostileCode& hostile) {
    SCOPED_TRACE(hostile.name);
    ++cases;
    IndexBuffer indices;
    testing::reset_largest_allocation();
    const Status status = GetParam()->decode(hostile.bytes, kDimension, hostile.count, indices);
    // Indices that double as they grow; conflict sets have 2 * dimension + 65,536 members and 16 bytes for each bit.
    EXPECT_LE(testing::largest_allocation(), 12 * kDimension + 384 * code.bytes.size() + (1 << 19));
    if (!status) {
      EXPECT_EQ(status.error().code, ErrorCode::kMalformed);
      return;
    }
    ASSERT_EQ(indices.size(), hostile.count);
    for (size_t j = 1; j < indices.size(); ++j) ASSERT_LT(indices[j - 1], indices[j]);
    ASSERT_TRUE(indices.empty() || indices.back() < kDimension);
  });
  EXPECT_GT(cases, 300u);
}

INSTANTIATE_TEST_SUITE_P(Codecs, HostileIndexCode, ::testing::ValuesIn(index_codecs().begin(), index_codecs().end()),
                         [](const auto& param) { return std::string(param.param->name()); });

}  // namespace
}  // namespace millrace::bench
