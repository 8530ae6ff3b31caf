#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "tests/support/oracles/stream_oracle.h"
#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"

/// Operations other than the sum, on every algorithm that takes them; and what every algorithm refuses.
namespace millrace::peer::testing {
namespace {

/// Of two the one of larger magnitude, the positive one of equals: absent entries are 0.
ReduceOp largest_magnitude() {
  return {"largest magnitude", 0, [](float a, float b) {
            if (std::abs(a) == std::abs(b)) return std::max(a, b);
            return std::abs(a) > std::abs(b) ? a : b;
          }};
}

/// A neutral element that is finite and not 0.
ReduceOp min_below_100() {
  return {"min below 100", 100, [](float a, float b) { return std::min(a, b); }};
}

void check_operations(const AlgorithmInfo& info, const ReduceOp& op, uint32_t size, uint64_t dimension, uint64_t count,
                      Spread spread) {
  SCOPED_TRACE(std::string(info.name) + " " + op.name + ", ranks " + std::to_string(size) + ", n " +
               std::to_string(dimension) + ", count " + std::to_string(count) + ", " + std::string(name_of(spread)));
  AllreduceSettings settings;
  settings.dimension = dimension;
  settings.op = op;
  PumpedAllreduce all(size, info.id, settings, dimension);
  std::vector<SharedStream> own;
  std::map<uint32_t, float> expected;
  for (uint32_t rank = 0; rank < size; ++rank) {
    own.push_back(contribution_of(spread, rank, size, dimension, count, 5));
    const StreamView& view = own.back().view;
    for (size_t i = 0; i < view.count(); ++i) {
      const auto [at, first] = expected.emplace(view.indices[i], view.values[i]);
      if (!first) at->second = op.combine(at->second, view.values[i]);
    }
  }
  const auto results = all.step(own);
  for (const auto& result : results) {
    ASSERT_TRUE(result.has_value()) << result.error().message;
    ASSERT_TRUE(millrace::testing::same_bits(result->sum.view, results[0]->sum.view));
    EXPECT_EQ(result->returned.count(), 0u);
  }
  const StreamView& got = results[0]->sum.view;
  std::map<uint32_t, float> entries;
  for (size_t i = 0; i < got.count(); ++i) {
    if (got.values[i] != op.neutral) entries.emplace(got.dense ? i : got.indices[i], got.values[i]);
  }
  ASSERT_EQ(entries, expected);
}

class Operations : public ::testing::TestWithParam<AlgorithmInfo> {};
INSTANTIATE_TEST_SUITE_P(All, Operations, ::testing::ValuesIn(algorithms().begin(), algorithms().end()),
                         [](const auto& one) { return std::string(one.param.name); });

void check_all(const AlgorithmInfo& info, const ReduceOp& op) {
  for (const uint32_t size : {1u, 2u, 3u, 5u, 8u}) {
    check_operations(info, op, size, 2000, 30, Spread::kUniform);
    check_operations(info, op, size, 400, 200, Spread::kUniform);  // becomes dense
    check_operations(info, op, size, 2000, 100, Spread::kOneRegion);
    check_operations(info, op, size, 5, 2, Spread::kUniform);
  }
}

TEST_P(Operations, MaxMinAndCustom) {
  if (GetParam().needs_sum || GetParam().result != ResultKind::kExactSum) GTEST_SKIP() << "it can only add";
  check_all(GetParam(), max_op());
  check_all(GetParam(), min_op());
  check_all(GetParam(), largest_magnitude());
  check_all(GetParam(), min_below_100());
}

TEST_P(Operations, ALossyCodecIsRefusedForOperationsOtherThanSum) {
  AllreduceSettings settings;
  settings.dimension = 100;
  settings.k = 10;
  settings.op = max_op();
  settings.wire.contribution = codec_from_text("gap+qsgd4").value();
  const auto made = make_allreduce(GetParam().id, settings);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
}

/// Errors by rank of one step in which each has the same stream.
std::vector<Result<Reduced>> step_of(const AlgorithmInfo& info, uint32_t size, uint64_t dimension, const Stream& own) {
  AllreduceSettings settings;
  settings.dimension = dimension;
  settings.k = 1;
  PumpedAllreduce all(size, info.id, settings, 1);
  Stream copy = own;
  return all.step(std::vector<SharedStream>(size, SharedStream::from(std::move(copy))));
}

TEST_P(Operations, AnInvalidContributionIsRefused) {
  Stream stream = Stream::empty(100);
  stream.indices = {3};
  stream.values = {1};
  for (const auto& result : step_of(GetParam(), 3, 101, stream)) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  }
  stream.values = {std::numeric_limits<float>::quiet_NaN()};
  for (const auto& result : step_of(GetParam(), 3, 100, stream)) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kNonFinite);
  }
}

TEST_P(Operations, ASumThatOverflowsIsAnErrorOnEveryRank) {
  if (GetParam().result != ResultKind::kExactSum) GTEST_SKIP() << "it may have dropped it";
  Stream stream = Stream::empty(100);
  stream.indices = {3};
  stream.values = {std::numeric_limits<float>::max()};
  for (const uint32_t size : {2u, 3u, 4u}) {
    for (const auto& result : step_of(GetParam(), size, 100, stream)) {
      // A rank that had all it needed before the group ended cannot be; the others name it.
      ASSERT_FALSE(result.has_value());
      EXPECT_EQ(result.error().code, ErrorCode::kNonFinite);
    }
  }
}

/// Messages whose bytes, length or form are changed do not crash the rank: it gets an error, or a valid stream.
TEST_P(Operations, HostileMessagesAreErrorsAndNoCrash) {
  RandomSequence draws(RandomKey::from(7), 0);
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto size = static_cast<uint32_t>(2 + draws.next_below(5));
    AllreduceSettings settings;
    settings.dimension = 64;
    settings.k = 8;
    if (seed % 3 == 0) settings.wire = {codec_from_text("gap+raw").value(), codec_from_text("gap+raw").value(), {}};
    PumpedAllreduce all(size, GetParam().id, settings, seed);
    all.pump.tamper = [&draws](Outgoing& out) {
      if (draws.next_below(4) != 0) return;
      const ByteSpan old = out.message.body.bytes;
      ByteBuffer bytes(old.begin(), old.end());
      switch (draws.next_below(4)) {
        case 0: bytes.resize(draws.next_below(bytes.size() + 1)); break;
        case 1: bytes.resize(bytes.size() + draws.next_below(40), 0xff); break;
        case 2: out.message.form = static_cast<BodyForm>(draws.next_below(5)); break;
        default:
          for (auto& byte : bytes) {
            if (draws.next_below(4) == 0) byte = static_cast<uint8_t>(draws.next_below(256));
          }
      }
      out.message.body = SharedBytes::from(std::move(bytes));
    };
    std::vector<SharedStream> own;
    for (uint32_t rank = 0; rank < size; ++rank) {
      own.push_back(contribution_of(Spread::kUniform, rank, size, settings.dimension, 20, seed));
    }
    for (const auto& result : all.step(own)) {
      if (result) {
        EXPECT_TRUE(validate(result->sum.view).has_value()) << "seed " << seed;
      } else {
        EXPECT_NE(result.error().code, ErrorCode::kInvalidArgument) << "seed " << seed << result.error().message;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::peer::testing
