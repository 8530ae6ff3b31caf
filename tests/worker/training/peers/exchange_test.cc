#include "worker/training/exchange/exchange.h"
#include "worker/training/optimizers/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "tests/worker/option_texts.h"
#include "tests/worker/training/peers/on_ranks.h"
#include "tests/worker/training/peers/shards.h"
#include "worker/config/selection_text.h"

/// Both exchanges against one slow oracle, on a binary grid, where f32 sums are exact. Peers and servers must give its
/// sums to the bit, and the values that entered must be those in sums and residuals.
namespace millrace::training {
namespace {

using millrace::testing::set_option;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::Shards;

constexpr uint64_t kExchangeDimension = 96;
constexpr uint64_t kExchangeSteps = 10;
using Values = std::vector<double>;

/// A rank's gradient of a step: about a third of the entries, whole numbers from -30 to 30.
Stream gradient_of(uint32_t rank, uint64_t step) {
  RandomSequence random(random_key(77, rank, step));
  Stream gradient = Stream::empty(kExchangeDimension);
  for (uint32_t index = 0; index < kExchangeDimension; ++index) {
    if (random.next_below(3) != 0) continue;
    gradient.indices.push_back(index);
    gradient.values.push_back(static_cast<float>(random.next_below(61)) - 30);
  }
  return gradient;
}

/// The k largest of [begin, end), the lower index first where they are alike; no zeros.
void take_largest(const Values& values, size_t begin, size_t end, size_t k, std::vector<size_t>& taken) {
  std::vector<size_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return std::abs(values[a]) > std::abs(values[b]); });
  for (size_t at = 0; at < std::min(k, order.size()); ++at) {
    if (values[order[at]] != 0) taken.push_back(order[at]);
  }
}

/// Returns whether no entry stays in the residual: no selection, dense first steps, an amount of everything, and sizes
/// that RedSync does not compress.
bool sends_everything(const SelectionSpec& spec, uint64_t step) {
  return spec.selection == SelectionId::kNone || spec.selection == SelectionId::kBySize ||
         spec.k >= kExchangeDimension || (spec.warm_up == WarmUp::kDense && step < spec.warm_up_steps);
}

std::vector<size_t> selected(const Values& values, const SelectionSpec& spec, uint64_t step) {
  std::vector<size_t> taken;
  if (sends_everything(spec, step)) {
    take_largest(values, 0, kExchangeDimension, kExchangeDimension, taken);
  } else if (spec.selection == SelectionId::kBucketTopK) {
    const auto k = static_cast<size_t>(std::ceil(spec.density * spec.bucket_size));
    for (size_t begin = 0; begin < kExchangeDimension; begin += spec.bucket_size) {
      take_largest(values, begin, std::min<size_t>(begin + spec.bucket_size, kExchangeDimension), k, taken);
    }
  } else {
    take_largest(values, 0, kExchangeDimension, k_of(spec, kExchangeDimension), taken);
  }
  return taken;
}

/// [RedSync19, algorithm 4] for all ranks, with dense vectors; without momentum, and with other selections,
/// [SparCML19, algorithm 1].
class Oracle {
 public:
  Oracle(uint32_t ranks, const OptimizerOptions& options)
      : options_(options),
        residual_(ranks, Values(kExchangeDimension)),
        velocity_(residual_),
        entered_(kExchangeDimension) {
    const protocol::MomentumSpec momentum = momentum_of(options);
    factor_ = momentum.factor;
    nesterov_ = momentum.momentum == protocol::Momentum::kNesterov;
  }

  /// Returns the sum of the step; `largest` is the sum of the ranks' largest sent magnitudes.
  Values step(uint64_t step, double& largest) {
    Values sum(kExchangeDimension);
    largest = 0;
    for (uint32_t rank = 0; rank < residual_.size(); ++rank) {
      Values& residual = residual_[rank];
      Values& velocity = velocity_[rank];
      const Stream gradient = to_dense(gradient_of(rank, step).view());
      for (size_t i = 0; i < kExchangeDimension; ++i) {
        const auto g = static_cast<double>(gradient.values[i]);
        velocity[i] = factor_ * velocity[i] + g;
        const double enters = factor_ == 0 ? g : nesterov_ ? g + factor_ * velocity[i] : velocity[i];
        residual[i] += enters;
        entered_[i] += enters;
      }
      double most = 0;
      for (const size_t i : selected(residual, select_of(options_), step)) {
        sum[i] += residual[i];
        most = std::max(most, std::abs(residual[i]));
        residual[i] = 0;
        if (!sends_everything(select_of(options_), step)) velocity[i] = 0;
      }
      largest += most;
    }
    return sum;
  }

  const Values& residual(uint32_t rank) const { return residual_[rank]; }
  const Values& entered() const { return entered_; }

 private:
  const OptimizerOptions& options_;
  double factor_ = 0;
  bool nesterov_ = false;
  std::vector<Values> residual_, velocity_;
  Values entered_;
};

struct ExchangeBooks {
  std::string error = "not run";
  std::vector<Values> sums = {};
  std::vector<double> denominators = {};
  Values residual = Values(kExchangeDimension);
  ExchangeCounts counts = {};
};

Values dense_values(const StreamView& stream) {
  const Stream dense = to_dense(stream);
  return {dense.values.begin(), dense.values.end()};
}

/// All steps on one rank, staleness_of(options) of them in flight.
ExchangeBooks exchange_on(peer::PeerGroup& group, const OptimizerOptions& options) {
  ExchangeBooks books;
  auto exchange = make_exchange({group, kExchangeDimension}, options);
  if (!exchange) return {.error = exchange.error().message};
  const auto finish_down_to = [&](size_t left) -> Status {
    while ((*exchange)->in_flight() > left) {
      const auto sum = (*exchange)->finish_oldest();
      if (!sum) return std::unexpected(sum.error());
      books.sums.push_back(dense_values(sum->sum.view));
      books.denominators.push_back(sum->denominator);
    }
    return {};
  };
  Status status;
  for (uint64_t step = 0; step < kExchangeSteps && status; ++step) {
    status = (*exchange)->start(step, gradient_of(group.rank(), step));
    if (status) status = finish_down_to(staleness_of(options));
  }
  if (status) status = finish_down_to(0);
  if (!status) return {.error = status.error().message};
  books.counts = (*exchange)->counts();
  const auto residual = (*exchange)->take_residual();
  if (!residual) return {.error = residual.error().message};
  books.residual = dense_values(residual->view());
  const Status ended = (*exchange)->end();
  books.error = ended ? "" : ended.error().message;
  return books;
}

class BothPaths : public ::testing::Test {
 protected:
  std::vector<ExchangeBooks> run(uint32_t ranks, ExchangePath path, OptimizerOptions options) {
    options.path = path;
    if (path == ExchangePath::kServers) options.me.shards = shards_.addresses();
    options.job.name = "job " + std::to_string(++jobs_);
    EXPECT_TRUE(check_exchange(options));
    const auto progress = staleness_of(options) > 0 ? peer::Progress::kByThread : peer::Progress::kByCaller;
    return on_ranks<ExchangeBooks>(ranks, progress,
                                   [&](peer::PeerGroup& group) { return exchange_on(group, options); });
  }

  Shards shards_{2};
  int jobs_ = 0;
};

void expect_law(const std::vector<ExchangeBooks>& ranks, const Values& entered) {
  for (size_t i = 0; i < kExchangeDimension; ++i) {
    double left = entered[i];
    for (const Values& sum : ranks[0].sums) left -= sum[i];
    for (const ExchangeBooks& books : ranks) left -= books.residual[i];
    EXPECT_EQ(left, 0) << i;
  }
}

Values all_gradients(uint32_t ranks) {
  Values entered(kExchangeDimension);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (uint64_t step = 0; step < kExchangeSteps; ++step) {
      const Values gradient = dense_values(gradient_of(rank, step).view());
      for (size_t i = 0; i < kExchangeDimension; ++i) entered[i] += gradient[i];
    }
  }
  return entered;
}

void expect_same_on_all(const std::vector<ExchangeBooks>& ranks) {
  for (const ExchangeBooks& books : ranks) {
    ASSERT_EQ(books.error, "");
    ASSERT_EQ(books.sums.size(), kExchangeSteps);
    EXPECT_EQ(books.sums, ranks[0].sums);
    EXPECT_EQ(books.denominators, std::vector<double>(kExchangeSteps, static_cast<double>(ranks.size())));
  }
}

TEST_F(BothPaths, SumsAndResidualsAreTheOraclesToTheBit) {
  struct Case {
    const char* select;
    const char* momentum;
  };
  const Case cases[] = {{"none", "none"},
                        {"topk:9", "none"},
                        {"bucket_topk:0.125:16", "none"},
                        {"topk:9:dense=3", "none"},
                        {"none", "correction:0.5"},
                        {"topk:9", "correction:0.5"},
                        {"topk:9", "nesterov:0.5"},
                        {"topk:9:dense=3", "correction:0.5"},
                        {"topk:9:dense=3", "nesterov:0.5"},
                        {"topk:96", "correction:0.5"},
                        {"by_size:0.1", "correction:0.5"},
                        {"by_size:0.1:signs:dense=3", "nesterov:0.5"}};
  for (const Case& one : cases) {
    for (const uint32_t ranks : {1u, 2u, 3u, 4u}) {
      for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
        SCOPED_TRACE(std::string(one.select) + ' ' + one.momentum + ' ' + std::to_string(ranks) + ' ' +
                     std::string(path_name(path)));
        OptimizerOptions options;
        set_option(options.job, "select", one.select);
        set_option(options.job, "momentum", one.momentum);
        const std::vector<ExchangeBooks> books = run(ranks, path, options);
        ASSERT_NO_FATAL_FAILURE(expect_same_on_all(books));
        Oracle oracle(ranks, options);
        double largest = 0;
        for (uint64_t step = 0; step < kExchangeSteps; ++step)
          EXPECT_EQ(books[0].sums[step], oracle.step(step, largest)) << step;
        for (uint32_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(books[rank].residual, oracle.residual(rank)) << rank;
        expect_law(books, oracle.entered());
        EXPECT_GT(books[0].counts.entries, 0u);
        EXPECT_EQ(books[0].counts.bytes_sent > 0 && books[0].counts.bytes_received > 0, path == ExchangePath::kServers);
      }
    }
  }
}

TEST_F(BothPaths, AQuantizationErrorIsWithinOneQuantizerStep) {
  for (const uint32_t ranks : {1u, 3u}) {
    for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
      SCOPED_TRACE(std::to_string(ranks) + ' ' + std::string(path_name(path)));
      OptimizerOptions options = default_options(*find_optimizer("topk_sgd"));
      set_option(options.job, "select", "bucket_topk:0.125:16");
      const std::vector<ExchangeBooks> books = run(ranks, path, options);
      ASSERT_NO_FATAL_FAILURE(expect_same_on_all(books));
      Oracle oracle(ranks, options);
      size_t changed = 0;
      for (uint64_t step = 0; step < kExchangeSteps; ++step) {
        double largest = 0;
        const Values exact = oracle.step(step, largest);
        for (size_t i = 0; i < kExchangeDimension; ++i) {
          // 4 bits: 7 levels of the largest magnitude that a rank sends.
          EXPECT_LE(std::abs(books[0].sums[step][i] - exact[i]), largest / 7 * 1.0001) << step << ", " << i;
          changed += books[0].sums[step][i] != exact[i] ? 1 : 0;
        }
      }
      // One rank alone sends nothing, and so has nothing to quantize.
      EXPECT_EQ(changed > 0, ranks > 1 || path == ExchangePath::kServers);
      // The error is dropped: the residual knows nothing of it.
      for (uint32_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(books[rank].residual, oracle.residual(rank)) << rank;
    }
  }
}

/// Uncompressed steps have the oracle's sums to the bit, with any codec and quantizer of the job.
TEST_F(BothPaths, NoCodeChangesAValueOfAnUncompressedStep) {
  struct Case {
    const char* select;
    const char* codec;
    const char* quantizer;
  };
  for (const Case& one :
       {Case{"topk:9:dense=10", "gap+qsgd4", nullptr}, Case{"trimmed:9:signs:dense=10", "raw+sign_mean", nullptr},
        Case{"by_size:0.1:signs", "raw+sign_mean", nullptr}, Case{"by_size:0.1", "bloom_p1:0.1+onebit", nullptr},
        Case{"topk:9:dense=10", "gap+terngrad", "raw+qsgd4"}, Case{"by_size:0.1", "raw", "raw+qsgd2"}}) {
    for (const uint32_t ranks : {2u, 3u}) {
      for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
        if (one.quantizer != nullptr && path == ExchangePath::kServers) continue;
        SCOPED_TRACE(std::string(one.select) + ' ' + one.codec + ' ' + std::to_string(ranks) + ' ' +
                     std::string(path_name(path)));
        OptimizerOptions options;
        set_option(options.job, "select", one.select);
        set_option(options.job, "codec_up", one.codec);
        options.codec_error = CodecError::kDrop;
        set_option(options.job, "momentum", "correction:0.5");
        if (one.quantizer != nullptr) {
          options.algorithm = peer::AlgorithmId::kDsarSplitAllgather;
          options.quantizer = codec_from_text(one.quantizer).value();
        }
        const std::vector<ExchangeBooks> books = run(ranks, path, options);
        ASSERT_NO_FATAL_FAILURE(expect_same_on_all(books));
        Oracle oracle(ranks, options);
        double largest = 0;
        for (uint64_t step = 0; step < kExchangeSteps; ++step)
          EXPECT_EQ(books[0].sums[step], oracle.step(step, largest)) << step;
        for (const ExchangeBooks& of_rank : books) EXPECT_EQ(of_rank.residual, Values(kExchangeDimension));
      }
    }
  }
}

TEST_F(BothPaths, OfOktopkNothingIsLostOrCountedTwice) {
  for (const uint32_t ranks : {1u, 2u, 3u, 4u}) {
    for (const uint32_t period : {1u, 4u}) {
      for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
        SCOPED_TRACE(std::to_string(ranks) + ' ' + std::to_string(period) + ' ' + std::string(path_name(path)));
        OptimizerOptions options = default_options(*find_optimizer("oktopk_sgd"));
        set_option(options.job, "select", "topk:9");
        options.thresholds_period = period;
        const std::vector<ExchangeBooks> books = run(ranks, path, options);
        ASSERT_NO_FATAL_FAILURE(expect_same_on_all(books));
        expect_law(books, all_gradients(ranks));
        // The update has fewer entries than the ranks' own largest together.
        const auto carried = std::ranges::count_if(books[0].sums[0], [](double value) { return value != 0; });
        EXPECT_GT(carried, 0);
        EXPECT_LT(carried, 9 + 9);  // ties of whole numbers among them
        EXPECT_GT(books[0].counts.entries, 0u);
        EXPECT_LT(books[0].counts.entries, 2 * 9 * kExchangeSteps);
      }
    }
  }
}

TEST_F(BothPaths, WithStepsInFlightTheLawHolds) {
  for (const char* select : {"none", "topk:9"}) {
    for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
      SCOPED_TRACE(std::string(select) + ' ' + std::string(path_name(path)));
      OptimizerOptions options;
      set_option(options.job, "select", select);
      options.job.consistency = Synchronous{3};
      const std::vector<ExchangeBooks> books = run(3, path, options);
      ASSERT_NO_FATAL_FAILURE(expect_same_on_all(books));
      expect_law(books, all_gradients(3));
    }
  }
}

/// Checks one rank whose index codec sends other entries than were selected [DeepReduce21, 4]. Every summed value must
/// be the rank's value there, selected or not, and leave it. Velocities end where an entry was sent. Returns the number
/// of entries that were sent beside the selected ones.
size_t expect_original_values(const ExchangeBooks& books, const OptimizerOptions& options, bool sends_selected) {
  const double factor = momentum_of(options).factor;
  Values residual(kExchangeDimension), velocity(kExchangeDimension);
  size_t beside = 0;
  for (uint64_t step = 0; step < kExchangeSteps; ++step) {
    const Values gradient = dense_values(gradient_of(0, step).view());
    for (size_t i = 0; i < kExchangeDimension; ++i) {
      velocity[i] = factor * velocity[i] + gradient[i];
      residual[i] += velocity[i];
    }
    const std::vector<size_t> chosen = selected(residual, select_of(options), step);
    for (size_t i = 0; i < kExchangeDimension; ++i) {
      const double sent = books.sums[step][i];
      const bool is_chosen = std::ranges::find(chosen, i) != chosen.end();
      if (sent == 0 && !(is_chosen && sends_selected)) continue;
      EXPECT_EQ(sent, residual[i]) << step << ", " << i;
      beside += is_chosen ? 0 : 1;
      residual[i] = velocity[i] = 0;
    }
  }
  EXPECT_EQ(books.residual, residual);
  return beside;
}

TEST_F(BothPaths, FalsePositivesCarryTheOriginalGradient) {
  struct Case {
    const char* codec;
    bool sends_selected;
  };
  const Case cases[] = {{"bloom_p0:0.3", true},    {"bloom_p1:0.3", false},     {"bloom_p2:0.3", false},
                        {"bloom_left:0.3", false}, {"bloom_middle:0.3", false}, {"bloom_right:0.3", false}};
  for (const Case& one : cases) {
    for (const char* momentum : {"none", "correction:0.5"}) {
      for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
        SCOPED_TRACE(std::string(one.codec) + ' ' + momentum + ' ' + std::string(path_name(path)));
        OptimizerOptions options;
        options.algorithm = path == ExchangePath::kPeers ? peer::AlgorithmId::kRedsyncAllgather : options.algorithm;
        set_option(options.job, "select", "topk:9");
        set_option(options.job, "codec_up", one.codec);
        set_option(options.job, "momentum", momentum);
        const std::vector<ExchangeBooks> books = run(1, path, options);
        ASSERT_NO_FATAL_FAILURE(expect_same_on_all(books));
        EXPECT_GT(expect_original_values(books[0], options, one.sends_selected), 0u);
      }
    }
  }
}

/// An entry that a codec adds leaves the residual also where its error on values is dropped.
TEST_F(BothPaths, FalsePositivesAreNotCountedTwiceWhereErrorsAreDropped) {
  for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
    OptimizerOptions options;
    options.algorithm = path == ExchangePath::kPeers ? peer::AlgorithmId::kSsarRecursiveDoubling : options.algorithm;
    set_option(options.job, "select", "topk:9");
    set_option(options.job, "codec_up", "bloom_p0:0.3");
    options.codec_error = CodecError::kDrop;
    const std::vector<ExchangeBooks> books = run(3, path, options);
    ASSERT_NO_FATAL_FAILURE(expect_same_on_all(books));
    expect_law(books, all_gradients(3));
    EXPECT_GT(books[0].counts.entries, 9u * kExchangeSteps) << path_name(path);
  }
}

TEST_F(BothPaths, EveryAllreduceKeepsTheLawWithEntriesThatItsCodecAdds) {
  for (const peer::AlgorithmInfo& info : peer::algorithms()) {
    for (const char* codec : {"bloom_p0:0.3", "bloom_p1:0.3", "bloom_p2:0.1"}) {
      for (const uint32_t in_flight : {0u, 2u}) {
        for (const uint32_t ranks : {2u, 3u}) {
          SCOPED_TRACE(std::string(info.name) + ' ' + codec + ' ' + std::to_string(in_flight) + ' ' +
                       std::to_string(ranks));
          OptimizerOptions options;
          options.algorithm = info.id;
          set_option(options.job, "select", "topk:9");
          set_option(options.job, "codec_up", codec);
          options.job.consistency = Synchronous{in_flight};
          const std::vector<ExchangeBooks> books = run(ranks, ExchangePath::kPeers, options);
          ASSERT_NO_FATAL_FAILURE(expect_same_on_all(books));
          expect_law(books, all_gradients(ranks));
        }
      }
    }
  }
}

/// Returns a rank's gradient of a step where most parts of the tensor are empty: one entry, or none.
Stream one_entry_of(uint32_t rank, uint64_t step, uint64_t dimension) {
  constexpr std::array<uint64_t, 4> kAt = {0, 0, 1, 3};  // in quarters of the dimension; after them no entry
  Stream gradient = Stream::empty(dimension);
  if (step == kAt.size()) return gradient;
  gradient.indices.push_back(static_cast<uint32_t>(kAt[step] * (dimension / 4) + rank));
  gradient.values.push_back(1);
  return gradient;
}

TEST_F(BothPaths, PartsWithoutEntriesAreNoOtherNumberOfRanks) {
  constexpr uint64_t kWide = uint64_t{1} << 21;  // several parts a shard
  constexpr uint64_t kSteps = 5;
  for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
    OptimizerOptions options;
    options.path = path;
    options.me.shards = shards_.addresses();
    const auto all = on_ranks<std::string>(3, peer::Progress::kByCaller, [&](peer::PeerGroup& group) -> std::string {
      auto exchange = make_exchange({group, kWide}, options);
      if (!exchange) return exchange.error().message;
      for (uint64_t step = 0; step < kSteps; ++step) {
        if (Status status = (*exchange)->start(step, one_entry_of(group.rank(), step, kWide)); !status) {
          return status.error().message;
        }
        const auto sum = (*exchange)->finish_oldest();
        if (!sum) return sum.error().message;
        const Stream sparse = to_sparse(sum->sum.view);
        const size_t expected = one_entry_of(0, step, kWide).indices.size() * group.size();
        if (sparse.indices.size() != expected) return "entries in step " + std::to_string(step);
        if (expected > 0 && sum->denominator != group.size()) return "denominator in step " + std::to_string(step);
        for (uint32_t rank = 0; rank < expected; ++rank) {
          const uint32_t index = one_entry_of(rank, step, kWide).indices.front();
          if (sparse.indices[rank] != index || sparse.values[rank] != 1) return "step " + std::to_string(step);
        }
      }
      const Status ended = (*exchange)->end();
      return ended ? "" : ended.error().message;
    });
    for (const std::string& error : all) EXPECT_EQ(error, "") << path_name(path);
  }
}

TEST(Exchange, AnErrorThatGrowsWhereItIsFedBackIsDropped) {
  const auto error_of = [](const char* codec) {
    OptimizerOptions options;
    set_option(options.job, "codec_up", codec);
    return codec_error_of(options);
  };
  for (const char* codec : {"gap", "gap+qsgd8", "bloom_p0+qsgd8", "bloom_p1", "bloom_p2"}) {
    EXPECT_EQ(error_of(codec), CodecError::kRetain) << codec;
  }
  for (const char* codec : {"bloom_naive", "bloom_p0+qsgd2", "gap+sketchml"}) {
    EXPECT_EQ(error_of(codec), CodecError::kDrop) << codec;
  }
}

TEST_F(BothPaths, ClippingIsToTheThresholdTimesTheRootOfTheRanks) {
  constexpr uint32_t kRanks = 4;
  for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
    OptimizerOptions options;              // a mean
    options.job.contributions.clip = 2.5;  // gradients' norms are some 100
    const std::vector<ExchangeBooks> books = run(kRanks, path, options);
    ASSERT_NO_FATAL_FAILURE(expect_same_on_all(books));
    for (uint64_t step = 0; step < kExchangeSteps; ++step) {
      Values expected(kExchangeDimension);
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        const Values gradient = dense_values(gradient_of(rank, step).view());
        const double norm = std::sqrt(std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0));
        for (size_t i = 0; i < kExchangeDimension; ++i)
          expected[i] += gradient[i] * std::min(1.0, 2.5 * std::sqrt(4.0) / norm);
      }
      for (size_t i = 0; i < kExchangeDimension; ++i) EXPECT_NEAR(books[0].sums[step][i], expected[i], 1e-5) << step;
    }
  }
}

TEST_F(BothPaths, AGradientWithNanEndsAllRanksAndNamesOne) {
  for (const ExchangePath path : {ExchangePath::kPeers, ExchangePath::kServers}) {
    OptimizerOptions options;
    options.path = path;
    options.me.shards = shards_.addresses();
    options.job.name = "not finite";
    const auto errors = on_ranks<std::string>(3, peer::Progress::kByCaller, [&](peer::PeerGroup& group) -> std::string {
      auto exchange = make_exchange({group, kExchangeDimension}, options);
      if (!exchange) return exchange.error().message;
      Stream gradient = gradient_of(group.rank(), 0);
      if (group.rank() == 1) gradient.values[0] = std::nanf("");
      if (const Status status = (*exchange)->start(0, std::move(gradient)); !status) return status.error().message;
      const auto sum = (*exchange)->finish_oldest();
      return sum ? "summed" : sum.error().message;
    });
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("NaN or infinity")) << path_name(path);
    for (const uint32_t rank : {0u, 2u}) EXPECT_THAT(errors[rank], HasSubstr("rank 1")) << path_name(path);
  }
}

TEST_F(BothPaths, AllRanksReportAnUnreachableServer) {
  OptimizerOptions options;
  options.path = ExchangePath::kServers;
  options.me.shards = {"tcp://127.0.0.1:1"};
  options.me.connect_timeout = std::chrono::milliseconds(300);
  const auto errors = on_ranks<std::string>(2, peer::Progress::kByCaller, [&](peer::PeerGroup& group) -> std::string {
    const auto exchange = make_exchange({group, kExchangeDimension}, options);
    return exchange ? "connected" : exchange.error().message;
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("127.0.0.1:1"));
}

TEST(Exchange, ARefusalNamesTheUnsupportedOption) {
  const auto refusal = [](const char* optimizer, auto change) {
    OptimizerOptions options = default_options(*find_optimizer(optimizer));
    options.path = ExchangePath::kServers;
    options.me.shards = {"tcp://127.0.0.1:7600"};
    change(options);
    const Status checked = find_optimizer(optimizer)->check(options);
    return checked ? std::string("taken") : checked.error().message;
  };
  using Options = OptimizerOptions&;
  EXPECT_EQ(refusal("sgd", [](Options) {}), "taken");
  EXPECT_THAT(refusal("scd", [](Options) {}), HasSubstr("--path peers alone"));
  EXPECT_THAT(refusal("sgd", [](Options o) { o.algorithm = peer::AlgorithmId::kGtopk; }),
              HasSubstr("gtopk is an allreduce of --path peers"));
  EXPECT_THAT(refusal("sgd", [](Options o) { o.quantizer = codec_from_text("raw+qsgd4").value(); }),
              HasSubstr("--quantizer is of dense phases"));
  EXPECT_THAT(refusal("sgd", [](Options o) { o.job.consistency = Synchronous{64}; }), HasSubstr("staleness 64"));
  EXPECT_THAT(refusal("sgd", [](Options o) { set_option(o.job, "select", "uniform:0.1"); }), HasSubstr("unbiased"));
  EXPECT_THAT(refusal("sgd", [](Options o) { set_option(o.job, "momentum", "correction:0.9"); }), HasSubstr("rgc has"));
  EXPECT_THAT(refusal("oktopk_sgd", [](Options o) { o.job.contributions.clip = 1; }), HasSubstr("no --clip"));
  EXPECT_THAT(refusal("oktopk_sgd", [](Options o) { set_option(o.job, "select", "trimmed:0.1"); }),
              HasSubstr("it takes --select topk:DENSITY or topk:COUNT, and not trimmed:0.1"));
  EXPECT_THAT(refusal("rgc", [](Options o) { o.job.momentum = Momentum::correction(1.5); }), HasSubstr("momentum"));
  EXPECT_THAT(refusal("adam", [](Options o) { o.beta2 = 1; }), HasSubstr("beta 2 must be in [0, 1)"));
  EXPECT_EQ(refusal("sgd", [](Options o) { set_option(o.job, "codec_up", "auto"); }), "taken");
  EXPECT_THAT(refusal("sgd",
                      [](Options o) {
                        o.path = ExchangePath::kPeers;
                        set_option(o.job, "codec_up", "auto");
                      }),
              HasSubstr("--path server has"));
}

TEST(SelectionText, IsReadBackAsItWas) {
  for (const char* text :
       {"none", "topk:0.01", "topk:1000", "threshold:0.001", "threshold_reuse:0.01:64", "bucket_topk:0.0078125:256",
        "trimmed:0.001:signs:warm_up=500", "binary_search:0.3", "sampled:0.001:5", "radix:7", "gaussian:0.1",
        "by_size:0.001:signs:dense=400", "random:0.25", "gspar:0.01:3", "gspar_closed:0.7", "uniform:0.1",
        "topk:0.333333333333333314829616256247390992939472198486328125"}) {
    const SelectionSpec spec = selection_from_text(text).value();
    const auto again = selection_from_text(worker::selection_text(spec));
    ASSERT_TRUE(again) << text << ": " << worker::selection_text(spec) << ": " << again.error().message;
    EXPECT_EQ(*again, spec) << text << ": " << worker::selection_text(spec);
  }
}

}  // namespace
}  // namespace millrace::training
