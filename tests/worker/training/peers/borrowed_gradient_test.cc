#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/accumulate/add_and_collect.h"
#include "kernels/base/random.h"
#include "tests/worker/option_texts.h"
#include "tests/worker/training/peers/on_ranks.h"
#include "worker/training/exchange/exchange.h"
#include "worker/training/exchange/group_agreement.h"

/// A gradient that stays the caller's against one that is handed over: the same sums and residuals, to the bit. The
/// caller overwrites its memory at once, so that a value which is read later would be seen.
namespace millrace::training {
namespace {

using millrace::testing::set_option;

constexpr uint64_t kBorrowedDimension = 500;
constexpr uint64_t kBorrowedSteps = 6;
using BorrowedValues = std::vector<float>;

struct BorrowedBooks {
  std::string error = "not run";
  std::vector<BorrowedValues> sums = {};
  BorrowedValues residual = {};
  BorrowedValues velocity = {};
  std::vector<uint64_t> copied = {};  ///< bytes of each step; empty: the gradients were handed over
};

Buffer<float> normal_gradient(uint32_t rank, uint64_t step) {
  RandomSequence random(random_key(9, rank, step));
  Buffer<float> gradient(kBorrowedDimension);
  for (float& value : gradient) value = static_cast<float>(random.next_unit() - random.next_unit());
  return gradient;
}

BorrowedValues borrowed_values(const StreamView& stream) {
  const Stream dense = to_dense(stream);
  return {dense.values.begin(), dense.values.end()};
}

BorrowedBooks sums_of(peer::PeerGroup& group, const OptimizerOptions& options, bool is_borrowed) {
  BorrowedBooks books;
  auto exchange = make_peer_exchange({.group = group, .dimension = kBorrowedDimension}, options);
  if (!exchange) return {.error = exchange.error().message};
  for (uint64_t step = 0; step < kBorrowedSteps; ++step) {
    Buffer<float> gradient = normal_gradient(group.rank(), step);
    if (is_borrowed) {
      const Result<uint64_t> copied = (*exchange)->start_from(step, gradient);
      if (!copied) return {.error = copied.error().message};
      books.copied.push_back(*copied);
      std::ranges::fill(gradient, std::numeric_limits<float>::quiet_NaN());
    } else {
      const Status status = (*exchange)->start(step, {kBorrowedDimension, true, {}, std::move(gradient)});
      if (!status) return {.error = status.error().message};
    }
    const auto sum = (*exchange)->finish_oldest();
    if (!sum) return {.error = sum.error().message};
    books.sums.push_back(borrowed_values(sum->sum.view));
  }
  books.velocity = borrowed_values((*exchange)->take_velocity().view());
  const auto residual = (*exchange)->take_residual();
  if (!residual) return {.error = residual.error().message};
  books.residual = borrowed_values(residual->view());
  books.error = "";
  return books;
}

struct BorrowedCase {
  const char* options;  ///< NAME=VALUE, separated by spaces
  peer::AlgorithmId algorithm = peer::AlgorithmId::kSsarSplitAllgather;
  uint64_t whole_steps = 0;  ///< the first ones, in which the gradient is copied
};

OptimizerOptions options_of(const BorrowedCase& one) {
  OptimizerOptions options;
  options.algorithm = one.algorithm;
  const std::string text = one.options;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const size_t equals = text.find('=', at);
    set_option(options.job, text.substr(at, equals - at), text.substr(equals + 1, end - equals - 1));
    at = end + 1;
  }
  return options;
}

TEST(BorrowedGradient, HasTheSumsAndResidualsOfOneThatIsHandedOver) {
  using enum peer::AlgorithmId;
  const BorrowedCase cases[] = {{"select=topk:0.05"},
                                {"select=topk:0.05 codec_up=bloom_p0:0.1", kSsarRecursiveDoubling},
                                {"select=topk:0.05 codec_up=gap+qsgd4"},
                                {"select=topk:0.05 reproducible=true reselect=topk:0.02"},
                                {"select=topk:0.05:dense=2", kSsarSplitAllgather, 2},
                                {"select=topk:0.05", kGtopk},
                                {"select=topk:0.05", kOktopk},
                                {"select=topk:0.05", kTopkA},
                                {"select=gspar:0.05 unbiased=true"},
                                {"select=none", kDenseRabenseifner, kBorrowedSteps},
                                {"select=topk:0.05 momentum=correction:0.9"},
                                {"select=none momentum=nesterov:0.9"},
                                {"select=topk:0.05 clip=2", kSsarSplitAllgather, kBorrowedSteps}};
  for (const BorrowedCase& one : cases) {
    SCOPED_TRACE(std::string(one.options) + ' ' + std::string(peer::algorithm_info(one.algorithm).name));
    const OptimizerOptions options = options_of(one);
    const auto run = [&](bool is_borrowed) {
      return testing::on_ranks<BorrowedBooks>(
          3, peer::Progress::kByCaller, [&](peer::PeerGroup& group) { return sums_of(group, options, is_borrowed); });
    };
    const std::vector<BorrowedBooks> handed_over = run(false), borrowed = run(true);
    for (size_t rank = 0; rank < borrowed.size(); ++rank) {
      ASSERT_EQ(handed_over[rank].error, "");
      ASSERT_EQ(borrowed[rank].error, "");
      EXPECT_EQ(borrowed[rank].sums, handed_over[rank].sums);
      EXPECT_EQ(borrowed[rank].residual, handed_over[rank].residual);
      EXPECT_EQ(borrowed[rank].velocity, handed_over[rank].velocity);
      for (uint64_t step = 0; step < kBorrowedSteps; ++step) {
        EXPECT_EQ(borrowed[rank].copied[step], step < one.whole_steps ? 4 * kBorrowedDimension : 0) << step;
      }
    }
  }
}

/// A gradient with NaN is refused, and the group continues. A gradient whose sum could not start stays in the residual.
TEST(BorrowedGradient, ThatIsNotSentIsNotLost) {
  for (const char* select : {"topk:0.05", "none"}) {
    for (const bool is_borrowed : {true, false}) {
      SCOPED_TRACE(std::string(select) + (is_borrowed ? " borrowed" : " handed over"));
      OptimizerOptions options;
      set_option(options.job, "select", select);
      std::barrier refused_by_both(2);
      const auto run = [&](peer::PeerGroup& group) -> std::string {
        auto exchange = make_peer_exchange({.group = group, .dimension = kBorrowedDimension}, options);
        if (!exchange) return exchange.error().message;
        Buffer<float> gradient = normal_gradient(group.rank(), 0);
        const BorrowedValues given(gradient.begin(), gradient.end());
        gradient[7] = std::numeric_limits<float>::quiet_NaN();
        const Result<uint64_t> refused = (*exchange)->start_from(0, gradient);
        const bool group_continues = !group.failure();
        refused_by_both.arrive_and_wait();
        if (refused || refused.error().code != ErrorCode::kNonFinite) return "NaN was not refused";
        if (!group_continues) return "the group has ended";
        gradient[7] = given[7];
        static_cast<void>(end_group(group, {ErrorCode::kUnavailable, "the test"}));
        const Result<uint64_t> borrowed = is_borrowed ? (*exchange)->start_from(0, gradient) : Result<uint64_t>(0);
        if (is_borrowed && borrowed) return "it started";
        if (!is_borrowed && (*exchange)->start(0, {kBorrowedDimension, true, {}, std::move(gradient)}))
          return "it started";
        const auto left = (*exchange)->take_residual();
        return left && borrowed_values(left->view()) == given ? "" : "the residual has not the gradient";
      };
      EXPECT_EQ(testing::on_ranks<std::string>(2, peer::Progress::kByThread, run), std::vector<std::string>(2));
    }
  }
}

/// Of large tensors, the addition collects the largest entries for the selection.
TEST(BorrowedGradient, OfALargeTensorTheLargestEntriesAreSent) {
  constexpr uint64_t kDimension = kCollectFrom + 1000, kSent = 5000;
  OptimizerOptions options;
  set_option(options.job, "select", "topk:" + std::to_string(kSent));
  const auto run = [&](peer::PeerGroup& group) -> std::string {
    auto exchange = make_peer_exchange({.group = group, .dimension = kDimension}, options);
    if (!exchange) return exchange.error().message;
    BorrowedValues residual(kDimension);
    for (uint64_t step = 0; step < 3; ++step) {
      RandomSequence random(random_key(9, step));
      Buffer<float> gradient(kDimension);
      for (float& value : gradient) value = static_cast<float>(random.next_below(1 << 14)) - (1 << 13);  // with ties
      for (size_t at = 0; at < kDimension; ++at) residual[at] += gradient[at];
      const Result<uint64_t> copied = (*exchange)->start_from(step, gradient);
      if (!copied) return copied.error().message;
      if (*copied != 0) return "it was copied";
      const auto sum = (*exchange)->finish_oldest();
      if (!sum) return sum.error().message;
      std::vector<uint32_t> order(kDimension);
      std::iota(order.begin(), order.end(), 0U);
      std::ranges::stable_sort(order, std::greater<>(), [&](uint32_t at) { return std::abs(residual[at]); });
      BorrowedValues expected(kDimension);
      for (uint64_t at = 0; at < kSent; ++at) expected[order[at]] = std::exchange(residual[order[at]], 0);
      if (borrowed_values(sum->sum.view) != expected) return "step " + std::to_string(step) + " sent other entries";
    }
    const auto left = (*exchange)->take_residual();
    return left && borrowed_values(left->view()) == residual ? "" : "another residual is left";
  };
  EXPECT_EQ(testing::on_ranks<std::string>(1, peer::Progress::kByCaller, run), std::vector<std::string>{""});
}

}  // namespace
}  // namespace millrace::training
