#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "kernels/base/random.h"
#include "millrace/millrace.h"
#include "tests/worker/option_texts.h"
#include "tests/worker/session_options.h"
#include "tests/worker/training/peers/on_ranks.h"
#include "tests/worker/training/peers/shards.h"
#include "tests/worker/training/peers/switch_steps.h"
#include "worker/config/selection_text.h"
#include "worker/training/exchange/error_feedback.h"
#include "worker/training/exchange/exchange.h"
#include "worker/training/exchange/peer_grid.h"

/// `reproducible`: the same gradients give the same updates and the same residuals, to the bit. This holds over peers
/// by every algorithm with exact sums, over 1 to 3 shards cut into parts in several ways. It also holds over a switch
/// whose packets arrive in any order.
namespace millrace::training {
namespace {

using testing::on_ranks;
using testing::Shards;
using testing::SwitchSteps;

constexpr uint32_t kIdentityDimension = 13'001;  // three shards' least ranges, and a part of a block
constexpr uint32_t kBlock = 512;
constexpr uint64_t kIdentitySteps = 22;
constexpr const char* kGrid = "512:-20";

/// Returns the gradient that a rank pushes in a step.
using Gradients = Stream (*)(uint32_t rank, uint64_t step);

float magnitude(double decimal) { return static_cast<float>(std::pow(10.0, decimal)); }

/// From 1e-30 to 1e30, each block at a magnitude of its own that drifts and jumps; zeros and subnormals among them.
Stream wild(uint32_t rank, uint64_t step) {
  RandomSequence random(random_key(5, rank, step));
  Stream gradient = Stream::empty(kIdentityDimension);
  for (uint32_t index = 0; index < kIdentityDimension; ++index) {
    if (random.next_below(12) != 0) continue;
    const uint32_t block = index / kBlock;
    RandomSequence of_block(random_key(6, block, step / 5));  // jumps every five steps
    const double drift = 0.2 * std::sin(static_cast<double>(step + block));
    const double decimal = block % 3 == 0 ? -3 + drift : of_block.next_unit() * 60 - 30 + drift;
    auto value = static_cast<float>(random.next_normal()) * magnitude(decimal);
    if (random.next_below(20) == 0) value = 0;
    if (random.next_below(20) == 0) value = 1e-42F;
    gradient.indices.push_back(index);
    gradient.values.push_back(value);
  }
  return gradient;
}

/// All in a few indices, the same at all ranks, few distinct magnitudes: ties, and sums that are 0.
Stream clustered(uint32_t rank, uint64_t step) {
  RandomSequence random(random_key(7, rank, step));
  Stream gradient = Stream::empty(kIdentityDimension);
  for (uint32_t index = 700; index < 1'700; index += 1 + static_cast<uint32_t>(step % 2)) {
    gradient.indices.push_back(index);
    gradient.values.push_back((static_cast<float>(random.next_below(5)) - 2) * 0x1p-6F);
  }
  return gradient;
}

/// Much of it, pushed by several ranks, nothing by others: with selection none sums and updates are dense.
Stream full(uint32_t rank, uint64_t step) {
  RandomSequence random(random_key(8, rank, step));
  Stream gradient = Stream::empty(kIdentityDimension);
  for (uint32_t index = 0; index < kIdentityDimension && (rank + step) % 4 != 3; ++index) {
    if (random.next_below(10) == 0) continue;
    gradient.indices.push_back(index);
    gradient.values.push_back(static_cast<float>(random.next_normal()) * magnitude(-static_cast<double>(step) / 3));
  }
  return gradient;
}

/// Returns gradients(rank, step), made once: every algorithm and every way takes the same gradients.
///
/// Threads  any.
const Stream& made_gradient(Gradients gradients, uint32_t rank, uint64_t step) {
  static std::mutex mutex;
  static std::map<std::tuple<Gradients, uint32_t, uint64_t>, Stream> made;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = made.try_emplace({gradients, rank, step});
  if (is_new) at->second = gradients(rank, step);
  return at->second;
}

/// The results of all steps on one rank, in bits.
struct IdentityBooks {
  std::string error = "not run";
  std::vector<std::vector<uint32_t>> sums = {};
  std::vector<uint32_t> residual = {};
  bool operator==(const IdentityBooks&) const = default;
};

std::vector<uint32_t> bits_of(const StreamView& stream) {
  const Stream dense = to_dense(stream);
  std::vector<uint32_t> bits;
  for (const float value : dense.values) bits.push_back(value == 0 ? 0 : std::bit_cast<uint32_t>(value));
  return bits;
}

struct IdentityCase {
  const char* name;
  Gradients gradients;
  const char* select;
  const char* reselect;
  const char* momentum = "none";  ///< over peers and shards: a switch's client has none
};

constexpr IdentityCase kCases[] = {{"wild", wild, "topk:300", "none"},
                                   {"wild, cut", wild, "topk:300", "topk:200"},
                                   {"clustered, cut", clustered, "topk:200", "topk:150"},
                                   {"clustered, none", clustered, "none", "none"},
                                   {"full", full, "none", "none"},
                                   {"full, cut", full, "none", "topk:2000"},
                                   {"full, selected", full, "topk:0.2", "topk:0.1"},
                                   {"momentum", clustered, "topk:200", "none", "correction:0.5"},
                                   {"momentum, cut", full, "topk:0.1", "topk:0.1", "nesterov:0.5"}};

OptimizerOptions identity_options_of(const IdentityCase& one) {
  OptimizerOptions options;
  options.job.guarantees.reproducible = true;
  millrace::testing::set_option(options.job, "grid", kGrid);
  millrace::testing::set_option(options.job, "select", one.select);
  millrace::testing::set_option(options.job, "reselect", one.reselect);
  millrace::testing::set_option(options.job, "momentum", one.momentum);
  return options;
}

IdentityBooks identity_exchange_on(peer::PeerGroup& group, const OptimizerOptions& options, Gradients gradients) {
  IdentityBooks books;
  auto exchange = make_exchange({group, kIdentityDimension}, options);
  if (!exchange) return {.error = exchange.error().message};
  for (uint64_t step = 0; step < kIdentitySteps; ++step) {
    const Status started = (*exchange)->start(step, Stream(made_gradient(gradients, group.rank(), step)));
    if (!started) return {.error = started.error().message};
    const auto sum = (*exchange)->finish_oldest();
    if (!sum) return {.error = sum.error().message};
    books.sums.push_back(bits_of(sum->sum.view));
  }
  const auto residual = (*exchange)->take_residual();
  if (!residual) return {.error = residual.error().message};
  books.residual = bits_of(residual->view());
  const Status ended = (*exchange)->end();
  books.error = ended ? "" : ended.error().message;
  return books;
}

std::vector<IdentityBooks> over_peers(uint32_t ranks, const OptimizerOptions& options, Gradients gradients) {
  const Status valid = check_exchange(options);
  if (!valid) return {IdentityBooks{.error = valid.error().message}};
  return on_ranks<IdentityBooks>(ranks, peer::Progress::kByCaller, [&](peer::PeerGroup& group) {
    return identity_exchange_on(group, options, gradients);
  });
}

/// One worker of a job at shards, by the public interface alone.
IdentityBooks session_of(const millrace::testing::SessionOptions& job, Gradients gradients) {
  IdentityBooks books;
  try {
    const auto session = Session::connect(job, job, {TensorOptions{.name = "w", .dimension = kIdentityDimension}});
    for (uint64_t step = 0; step < kIdentitySteps; ++step) {
      const Stream& gradient = made_gradient(gradients, job.worker, step);
      // Every other step as the whole array: the selection, and so all else, is the same.
      const bool as_array = job.worker % 2 == 0 && step % 2 == 1;
      const uint64_t pushed = as_array ? session->push(0, to_dense(gradient.view()).values)
                                       : session->push_sparse(0, gradient.indices, gradient.values);
      const TensorUpdate update = session->await(0, pushed, std::chrono::seconds(120));
      Stream sum = Stream::empty(kIdentityDimension);
      for (const UpdatePiece& piece : update.pieces) {
        const Stream sparse =
            piece.dense ? to_sparse(StreamView{piece.dimension, true, {}, piece.values})
                        : slice_of(StreamView{piece.dimension, false, piece.indices, piece.values}, 0, piece.dimension);
        for (size_t i = 0; i < sparse.indices.size(); ++i) {
          sum.indices.push_back(static_cast<uint32_t>(piece.begin + sparse.indices[i]));
          sum.values.push_back(sparse.values[i]);
        }
      }
      books.sums.push_back(bits_of(sum.view()));
    }
    const SparseEntries left = session->take_residual(0);
    Stream residual = Stream::empty(kIdentityDimension);
    residual.indices.assign(left.indices.begin(), left.indices.end());
    residual.values.assign(left.values.begin(), left.values.end());
    books.residual = bits_of(residual.view());
    session->finish();
    books.error.clear();
  } catch (const JobError& error) {
    books.error = error.what();
  }
  return books;
}

std::vector<IdentityBooks> over_shards(const Shards& shards, uint32_t workers, uint32_t parts_per_shard,
                                       const IdentityCase& one) {
  static int jobs = 0;
  millrace::testing::SessionOptions job;
  job.name = "identity " + std::to_string(++jobs);
  job.workers = workers;
  job.workers_min = workers;
  job.shards = shards.addresses();
  job.layout.parts_per_shard = parts_per_shard;
  millrace::testing::set_option(job, "select", one.select);
  millrace::testing::set_option(job, "reselect", one.reselect);
  job.updates.combine = Combine::kMean;
  // Codec auto measures once a process, and a loaded machine takes its time.
  job.liveness.dead_after = std::chrono::minutes(2);
  job.shard_silence = std::chrono::minutes(2);
  millrace::testing::set_option(job, "momentum", one.momentum);
  job.guarantees = {.reproducible = true, .audit = true};
  millrace::testing::set_option(job, "grid", kGrid);
  job.codec_up = parts_per_shard % 2 == 0 ? Codec() : Codec::automatic();
  std::vector<IdentityBooks> books(workers);
  {
    std::vector<std::jthread> threads;
    for (uint32_t worker = 0; worker < workers; ++worker) {
      millrace::testing::SessionOptions own = job;
      own.worker = worker;
      threads.emplace_back([&books, own, &one] { books[own.worker] = session_of(own, one.gradients); });
    }
  }
  return books;
}

std::vector<IdentityBooks> over_switch(uint32_t workers, const IdentityCase& one) {
  const SelectionSpec select = selection_from_text(one.select).value();
  uint64_t k = 0;
  if (std::string(one.reselect) != "none") k = k_of(selection_from_text(one.reselect).value(), kIdentityDimension);
  SwitchSteps steps({.workers = workers, .dimension = kIdentityDimension, .window_indices = kBlock, .reselect_k = k});
  std::vector<IdentityBooks> books(workers, IdentityBooks{.error = ""});
  std::vector<ErrorFeedback> feedback;
  for (uint32_t worker = 0; worker < workers; ++worker) {
    ErrorFeedbackOptions options;
    options.dimension = kIdentityDimension;
    options.select = select;
    feedback.push_back(std::move(*ErrorFeedback::make(options)));
  }
  for (uint64_t step = 0; step < kIdentitySteps; ++step) {
    std::vector<Stream> offers;
    for (uint32_t worker = 0; worker < workers; ++worker) {
      offers.push_back(feedback[worker].contribution(Stream(made_gradient(one.gradients, worker, step)), step)->copy());
    }
    const auto results = steps.step(offers);
    if (results.empty()) return {IdentityBooks{.error = "the step does not end"}};
    for (uint32_t worker = 0; worker < workers; ++worker) {
      feedback[worker].give_back(results[worker].returned.view());
      books[worker].sums.push_back(bits_of(results[worker].update.view()));
    }
  }
  for (uint32_t worker = 0; worker < workers; ++worker)
    books[worker].residual = bits_of(feedback[worker].take_residual().view());
  return books;
}

void expect_same_weights(const std::vector<IdentityBooks>& found, const std::vector<IdentityBooks>& expected) {
  ASSERT_EQ(found.size(), expected.size()) << (found.empty() ? "" : found[0].error);
  for (size_t rank = 0; rank < found.size(); ++rank) {
    ASSERT_EQ(found[rank].error, "") << rank;
    for (uint64_t step = 0; step < kIdentitySteps; ++step) {
      ASSERT_TRUE(found[rank].sums[step] == expected[rank].sums[step]) << "rank " << rank << ", step " << step;
    }
    ASSERT_TRUE(found[rank].residual == expected[rank].residual) << "rank " << rank;
  }
}

class Identity : public ::testing::TestWithParam<IdentityCase> {};

TEST_P(Identity, OfAllAlgorithmsShardsAndTheSwitch) {
  const Shards one(1);
  const Shards two(2);
  const Shards three(3);
  // Each number of ranks and of parts meets one cluster, each cluster meets every case.
  const Shards* const clusters[] = {&one, &two, &three, &two};
  uint32_t parts = 0;
  for (const uint32_t ranks : {2U, 3U, 5U, 8U}) {
    const Shards& shards = *clusters[parts++];
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const OptimizerOptions options = identity_options_of(GetParam());
    const std::vector<IdentityBooks> expected = over_peers(ranks, options, GetParam().gradients);
    ASSERT_EQ(expected[0].error, "");
    size_t carried = 0;
    for (const auto& sum : expected[0].sums) carried += sum.size() - static_cast<size_t>(std::ranges::count(sum, 0U));
    ASSERT_GT(carried, kIdentitySteps);
    for (const peer::AlgorithmInfo& info : peer::algorithms()) {
      if (info.result != peer::ResultKind::kExactSum || info.selects) continue;
      SCOPED_TRACE(info.name);
      OptimizerOptions by = options;
      by.algorithm = info.id;
      ASSERT_NO_FATAL_FAILURE(expect_same_weights(over_peers(ranks, by, GetParam().gradients), expected));
    }
    if (std::string(GetParam().momentum) == "none") {
      SCOPED_TRACE("switch");
      ASSERT_NO_FATAL_FAILURE(expect_same_weights(over_switch(ranks, GetParam()), expected));
    }
    SCOPED_TRACE(std::to_string(shards.addresses().size()) + " shards, " + std::to_string(parts) + " parts");
    ASSERT_NO_FATAL_FAILURE(expect_same_weights(over_shards(shards, ranks, parts, GetParam()), expected));
  }
}

INSTANTIATE_TEST_SUITE_P(Reproducible, Identity, ::testing::ValuesIn(kCases), [](const auto& of_case) {
  std::string name = of_case.param.name;
  std::erase_if(name, [](char c) { return c == ' ' || c == ','; });
  return name;
});

TEST(IdentityWithout, TheOptionAlgorithmsAndShardsDiffer) {
  IdentityCase one = kCases[0];
  OptimizerOptions options = identity_options_of(one);
  options.job.guarantees.reproducible = false;
  options.job.grid.reset();
  const auto ring = [&] {
    options.algorithm = peer::AlgorithmId::kDenseRing;
    return over_peers(5, options, one.gradients);
  }();
  options.algorithm = peer::AlgorithmId::kDenseRecursiveDoubling;
  const auto doubling = over_peers(5, options, one.gradients);
  ASSERT_EQ(ring[0].error, "");
  EXPECT_NE(ring[0].sums, doubling[0].sums);
}

/// Values on which f32 additions are exact: over all ranks, the values that entered are those in sums and residuals.
Stream on_steps(uint32_t rank, uint64_t step) {
  RandomSequence random(random_key(9, rank, step));
  Stream gradient = Stream::empty(kIdentityDimension);
  for (uint32_t index = 0; index < kIdentityDimension; ++index) {
    if (random.next_below(9) != 0) continue;
    // In every block: some that saturate at first (over 4), and some that are finer than the grid which the large ones
    // need.
    const int scale = static_cast<int>(index % 3) * 6 - 12;
    gradient.indices.push_back(index);
    gradient.values.push_back(std::ldexp(static_cast<float>(random.next_below(2001)) - 1000, scale));
  }
  return gradient;
}

TEST(IdentityLaw, NothingIsLostByRoundingAndSaturation) {
  for (const char* reselect : {"none", "topk:200"}) {
    const IdentityCase one{"law", on_steps, "topk:400", reselect};
    const std::vector<IdentityBooks> books = over_peers(4, identity_options_of(one), one.gradients);
    std::vector<double> left(kIdentityDimension, 0);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      ASSERT_EQ(books[rank].error, "");
      for (uint64_t step = 0; step < kIdentitySteps; ++step) {
        const Stream gradient = on_steps(rank, step);
        for (size_t i = 0; i < gradient.indices.size(); ++i) {
          left[gradient.indices[i]] += static_cast<double>(gradient.values[i]);
        }
      }
      for (uint32_t i = 0; i < kIdentityDimension; ++i) {
        left[i] -= static_cast<double>(std::bit_cast<float>(books[rank].residual[i]));
      }
    }
    bool kept = false;
    for (uint64_t step = 0; step < kIdentitySteps; ++step) {
      for (uint32_t i = 0; i < kIdentityDimension; ++i) {
        left[i] -= static_cast<double>(std::bit_cast<float>(books[0].sums[step][i]));
        kept = kept || books[0].residual[i] != 0;
      }
    }
    EXPECT_TRUE(kept);
    for (uint32_t i = 0; i < kIdentityDimension; ++i) ASSERT_EQ(left[i], 0) << i << ", " << reselect;
  }
}

TEST(IdentityRefuses, WhatCannotBeReproduced) {
  const auto says = [](auto change) {
    OptimizerOptions options = identity_options_of(kCases[0]);
    change(options);
    const Status status = check_exchange(options);
    return status ? std::string() : status.error().message;
  };
  using O = OptimizerOptions;
  EXPECT_EQ(says([](O&) {}), "");
  for (const peer::AlgorithmInfo& info : peer::algorithms()) {
    const bool exact = info.result == peer::ResultKind::kExactSum && !info.selects;
    const std::string said = says([&](O& o) { o.algorithm = info.id; });
    EXPECT_EQ(said.empty(), exact) << info.name << ": " << said;
  }
  EXPECT_NE(says([](O& o) { o.algorithm = peer::AlgorithmId::kGtopk; }).find("exact sums"), std::string::npos);
  EXPECT_NE(says([](O& o) {
              o.algorithm = peer::AlgorithmId::kDsarSplitAllgather;
              o.quantizer = codec_from_text("raw+qsgd4").value();
            }).find("--quantizer"),
            std::string::npos);
  EXPECT_NE(says([](O& o) { millrace::testing::set_option(o.job, "codec_up", "gap+qsgd4"); }).find("without loss"),
            std::string::npos);
  EXPECT_NE(says([](O& o) { o.codec_error = CodecError::kDrop; }).find("nothing is dropped"), std::string::npos);
  EXPECT_NE(says([](O& o) { o.job.consistency = Synchronous{1}; }).find("--staleness"), std::string::npos);
  EXPECT_NE(says([](O& o) { millrace::testing::set_option(o.job, "grid", "100:0"); }).find("multiple of 64"),
            std::string::npos);
  EXPECT_NE(says([](O& o) { millrace::testing::set_option(o.job, "reselect", "topk:0.1:8"); }).find("period 8"),
            std::string::npos);
  EXPECT_EQ(says([](O& o) { millrace::testing::set_option(o.job, "reselect", "topk:0.1"); }), "");
  EXPECT_NE(says([](O& o) {
              o.job.guarantees.reproducible = false;
              o.job.grid.reset();
              millrace::testing::set_option(o.job, "reselect", "topk:5");
            }).find("--reproducible"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::training
