#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "tests/worker/training/peers/on_ranks.h"
#include "worker/training/exchange/error_feedback.h"
#include "worker/training/model/rate_schedule.h"
#include "worker/training/optimizers/compute_threads.h"

namespace millrace::training {
namespace {

TEST(RateSchedule, EachFormFollowsItsFormula) {
  const auto at = [](const char* text, double t) { return rate_schedule_from_text(text, 2).value().at(t); };
  EXPECT_DOUBLE_EQ(at("constant", 100), 2);
  EXPECT_DOUBLE_EQ(at("inverse", 3), 0.5);
  EXPECT_DOUBLE_EQ(at("inverse:4", 4), 1);
  EXPECT_DOUBLE_EQ(at("inverse_sqrt:2", 6), 1);
  EXPECT_DOUBLE_EQ(at("step", 0.99), 2);
  EXPECT_DOUBLE_EQ(at("step", 2.5), 0.5);
  EXPECT_DOUBLE_EQ(at("step:0.1:5", 4.9), 2);
  EXPECT_DOUBLE_EQ(at("step:0.1:5", 5), 0.2);
  for (const char* text : {"constant", "inverse:4", "inverse_sqrt:2", "step:0.1:5"}) {
    EXPECT_EQ(rate_schedule_text(rate_schedule_from_text(text, 1).value()), text);
  }
}

TEST(RateSchedule, AnInvalidScheduleIsRefused) {
  for (const char* text : {"", "linear", "constant:1", "inverse:0", "inverse:-1", "inverse:x", "inverse:1:2", "step:0",
                           "step:1.5", "step:0.5:0", "step:0.5:1:1", "inverse:inf"}) {
    const auto schedule = rate_schedule_from_text(text, 1);
    ASSERT_FALSE(schedule) << text;
    EXPECT_THAT(schedule.error().message, ::testing::HasSubstr(std::string("schedule '") + text + "'"));
  }
}

TEST(ComputeThreads, EveryPartIsCalledOncePerRun) {
  for (const uint32_t count : {0u, 1u, 2u, 7u}) {
    ComputeThreads threads(count);
    EXPECT_EQ(threads.count(), std::max(count, 1u));
    std::vector<std::atomic<int>> calls(threads.count());
    constexpr int kRuns = 50;
    for (int run = 0; run < kRuns; ++run) threads.run([&](uint32_t part) { ++calls[part]; });
    for (const auto& of_part : calls) EXPECT_EQ(of_part.load(), kRuns);
  }
}

/// Checks that sums of small whole numbers are exact: the values that entered are those in sums and residuals.
void expect_conserved(peer::AlgorithmId algorithm, const char* select, const char* codec, size_t in_flight,
                      CodecError codec_error = CodecError::kRetain) {
  constexpr uint64_t kDimension = 200;
  constexpr uint32_t kRanks = 4;
  constexpr uint64_t kSteps = 12;
  const peer::AlgorithmInfo& info = peer::algorithm_info(algorithm);
  SCOPED_TRACE(std::string(info.name) + " " + select + " " + codec);
  struct Books {
    std::vector<double> in = std::vector<double>(kDimension), out = in, kept = in;
    bool right = false;
  };
  const auto all = testing::on_ranks<Books>(kRanks, peer::Progress::kByThread, [&](peer::PeerGroup& group) {
    Books books;
    peer::AllreduceSettings settings;
    settings.dimension = kDimension;
    settings.k = 10;
    if (*codec != 0) settings.wire.contribution = codec_from_text(codec).value();
    std::vector<std::unique_ptr<peer::Allreduce>> made;
    for (size_t i = 0; i < in_flight; ++i) made.push_back(peer::make_allreduce(algorithm, settings).value());
    ErrorFeedbackOptions options;
    options.dimension = kDimension;
    options.result = info.result;
    options.codec_error = codec_error;
    if (info.result == peer::ResultKind::kExactSum) options.select = selection_from_text(select).value();
    auto feedback = ErrorFeedback::make(options).value();
    RandomSequence random(RandomKey::from(100 + group.rank()));
    std::vector<std::pair<peer::Pending<peer::Reduced>, SharedStream>> flying;
    const auto land = [&] {
      const auto reduced = flying.front().first.wait();
      if (!reduced) return false;
      feedback.take_back(flying.front().second, *reduced);
      flying.erase(flying.begin());
      const Stream sum = to_dense(reduced->sum.view);
      for (size_t i = 0; i < kDimension; ++i) books.out[i] += static_cast<double>(sum.values[i]);
      return true;
    };
    for (uint64_t step = 0; step < kSteps; ++step) {
      Stream gradient = Stream::empty(kDimension);
      for (uint32_t i = 0; i < kDimension; ++i) {
        if (random.next_below(3) != 0) continue;
        gradient.indices.push_back(i);
        gradient.values.push_back(static_cast<float>(random.next_below(61)) - 30);
        books.in[i] += static_cast<double>(gradient.values.back());
      }
      auto own = feedback.contribution(std::move(gradient), step).value();
      flying.emplace_back(group.start_allreduce(*made[step % in_flight], settings, own).value(), own);
      if (flying.size() == in_flight && !land()) return books;
    }
    while (!flying.empty()) {
      if (!land()) return books;
    }
    for (size_t i = 0; i < feedback.residual().size(); ++i) books.kept[i] = static_cast<double>(feedback.residual()[i]);
    books.right = true;
    return books;
  });
  double kept = 0;
  for (size_t i = 0; i < kDimension; ++i) {
    double balance = -all[0].out[i];
    for (const Books& books : all) {
      ASSERT_TRUE(books.right);
      EXPECT_EQ(books.out[i], all[0].out[i]);
      balance += books.in[i] - books.kept[i];
      kept += std::abs(books.kept[i]);
    }
    EXPECT_NEAR(balance, 0, *codec == 0 ? 0 : 1e-2) << i;
  }
  EXPECT_EQ(kept > 0, std::string_view(select) != "none" || *codec != 0);
}

TEST(ErrorFeedback, NothingIsLostOrCountedTwice) {
  using enum peer::AlgorithmId;
  for (const size_t in_flight : {1u, 3u}) {
    expect_conserved(kSsarSplitAllgather, "none", "", in_flight);
    expect_conserved(kSsarSplitAllgather, "topk:10", "", in_flight);
    expect_conserved(kDenseRing, "topk:10", "", in_flight);
    expect_conserved(kSsarRecursiveDoubling, "none", "gap+qsgd4", in_flight);
    expect_conserved(kSparseRing, "topk:20", "gap+qsgd4", in_flight);
    expect_conserved(kTopkA, "topk:10", "", in_flight);
    expect_conserved(kGtopk, "topk:10", "", in_flight);
    expect_conserved(kGaussianK, "topk:10", "", in_flight);
    expect_conserved(kOktopk, "topk:10", "", in_flight);
  }
}

TEST(ErrorFeedback, DroppedCodecErrorsLoseNothingWithoutACodec) {
  for (const peer::AlgorithmInfo& info : peer::algorithms()) {
    expect_conserved(info.id, "topk:10", "", 1, CodecError::kDrop);
  }
}

TEST(ErrorFeedback, SparseGradientsSummedExactlyNeedNoResidual) {
  ErrorFeedbackOptions options;
  options.dimension = uint64_t{1} << 32;
  auto feedback = ErrorFeedback::make(options).value();
  Stream gradient = Stream::empty(options.dimension);
  gradient.indices = {5, 4'000'000'000};
  gradient.values = {1, 2};
  const auto own = feedback.contribution(std::move(gradient), 0).value();
  EXPECT_THAT(own.view.indices, ::testing::ElementsAre(5, 4'000'000'000));
  EXPECT_TRUE(feedback.residual().empty());
}

}  // namespace
}  // namespace millrace::training
