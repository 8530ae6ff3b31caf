#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/reduce/reduce.h"
#include "millrace/millrace.h"
#include "tests/support/oracles/redsync_reference.h"
#include "tests/worker/option_texts.h"
#include "tests/worker/session_options.h"
#include "tests/worker/training/peers/on_ranks.h"
#include "tests/worker/training/peers/shards.h"
#include "worker/config/option_access.h"
#include "worker/training/exchange/exchange.h"
#include "worker/training/optimizers/optimizer.h"

/// RedSync as a training method, over servers and over peers: layers of every size that it treats differently, with
/// biases. Compares every weight, step by step, with a slow reference written from the paper.
namespace millrace::training {
namespace {

using testing::on_ranks;
using testing::Shards;
using Reference = millrace::testing::RedSyncReference;

constexpr uint32_t kRedsyncWorkers = 2;
constexpr uint64_t kRedsyncDenseSteps = 2;
constexpr uint64_t kRedsyncSteps = 9;
constexpr float kRedsyncRate = 0.125F;
constexpr double kRedsyncMomentum = 0.5;

struct Layer {
  const char* name;
  uint64_t size;
  bool output = false;
};
/// In the order of a network, so that neighbours below 16,384 entries could share a bucket. The layers that are sent
/// whole have more than 4,096 entries in all. Entries of each of the two layers of 9,216 are selected separately.
constexpr std::array kLayers = {Layer{"conv1", 4'096},   Layer{"conv1.bias", 300}, Layer{"conv2", 9'216},
                                Layer{"conv3", 9'216},   Layer{"conv3.bias", 64},  Layer{"fc", 100'000},
                                Layer{"fc.bias", 1'000}, Layer{"lstm", 5'000'000}, Layer{"out", 20'000, true},
                                Layer{"out.bias", 10}};
constexpr size_t kOpen = 7;  ///< the layer whose selection the paper leaves open

/// Least squares: each worker has a target of its own for every weight. In the open layer it has targets only for the
/// weights of its parity, so that an update identifies the senders.
class Targets {
 public:
  Targets() {
    for (size_t layer = 0; layer < kLayers.size(); ++layer) {
      for (uint32_t worker = 0; worker < kRedsyncWorkers; ++worker) {
        RandomSequence random(random_key(17, layer, worker));
        std::vector<float>& of_layer = targets_[worker][layer];
        of_layer.resize(kLayers[layer].size);
        // Sizes as 1 / u: twice as many reach half of a threshold, so that one can be reused while residuals grow.
        for (float& target : of_layer) {
          const double size = 1 / (random.next_unit() + 1e-4);
          target = static_cast<float>(random.next_below(2) == 0 ? size : -size);
        }
      }
    }
  }

  float gradient(uint32_t worker, size_t layer, size_t index, float weight) const {
    return has_target(worker, layer, index) ? weight - targets_[worker][layer][index] : 0;
  }
  double gradient(uint32_t worker, size_t layer, size_t index, double weight) const {
    return has_target(worker, layer, index) ? weight - static_cast<double>(targets_[worker][layer][index]) : 0;
  }
  double loss(size_t layer, const std::vector<float>& weights) const {
    double sum = 0;
    for (uint32_t worker = 0; worker < kRedsyncWorkers; ++worker) {
      for (size_t i = 0; i < weights.size(); ++i) {
        const auto off = static_cast<double>(gradient(worker, layer, i, weights[i]));
        sum += off * off / 2;
      }
    }
    return sum;
  }

 private:
  static bool has_target(uint32_t worker, size_t layer, size_t index) {
    return layer != kOpen || index % kRedsyncWorkers == worker;
  }
  std::array<std::array<std::vector<float>, kLayers.size()>, kRedsyncWorkers> targets_;
};

const Targets& targets() {
  static const Targets all;
  return all;
}

struct Method {
  const char* name;
  const char* momentum;
  Reference::Momentum kind;
  bool quantized;
};
constexpr Method kRgc = {"rgc", "nesterov:0.5", Reference::Momentum::kNesterov, false};
constexpr Method kQuantized = {"redsync", "correction:0.5", Reference::Momentum::kMasked, true};

std::string select_of(const Method& method) {
  return std::string("by_size:0.001") + (method.quantized ? ":signs" : "") +
         ":dense=" + std::to_string(kRedsyncDenseSteps);
}

/// One worker's weights, and how they are exchanged.
class RedsyncModel {
 public:
  RedsyncModel() {
    for (size_t layer = 0; layer < kLayers.size(); ++layer) weights_[layer].resize(kLayers[layer].size);
  }
  virtual ~RedsyncModel() = default;

  /// All layers' gradients; the weights have the update afterwards.
  virtual void step(uint64_t step, const std::vector<std::vector<float>>& gradients) = 0;
  virtual void end() = 0;

  const std::vector<float>& weights(size_t layer) const { return weights_[layer]; }
  /// Returns the entries of the open layer in the step's update, by the worker that sent them.
  const Reference::Sent& sent() const { return sent_; }

 protected:
  void note_update(uint64_t begin, const StreamView& update) {
    for (size_t at = 0; at < update.values.size(); ++at) {
      const uint64_t index = begin + (update.dense ? at : update.indices[at]);
      if (update.values[at] != 0) sent_[index % kRedsyncWorkers].push_back(static_cast<uint32_t>(index));
    }
  }
  std::array<std::vector<float>, kLayers.size()> weights_;
  Reference::Sent sent_ = Reference::Sent(kRedsyncWorkers);
};

class OverServers final : public RedsyncModel {
 public:
  OverServers(const Method& method, uint32_t worker, const std::vector<std::string>& shards, const std::string& job) {
    millrace::testing::SessionOptions options;
    options.name = job;
    options.worker = worker;
    options.workers = kRedsyncWorkers;
    options.shards = shards;
    millrace::testing::set_option(options, "select", select_of(method));
    options.codec_up = method.quantized ? Codec(index::raw, value::sign_mean) : Codec(index::raw);
    options.contributions.codec_error = method.quantized ? CodecError::kDrop : CodecError::kRetain;
    options.updates.combine = Combine::kMean;
    millrace::testing::set_option(options, "momentum", method.momentum);
    options.guarantees.audit = true;
    std::vector<TensorOptions> tensors;
    for (size_t layer = 0; layer < kLayers.size(); ++layer) {
      tensors.push_back({.name = kLayers[layer].name, .dimension = kLayers[layer].size});
      tensors.back().output_layer = kLayers[layer].output;
      tensors.back().weights = millrace::Weights(weights_[layer], -kRedsyncRate);
    }
    session_ = Session::connect(options, options, tensors);
  }

  void step(uint64_t, const std::vector<std::vector<float>>& gradients) override {
    uint64_t number = 0;
    for (size_t layer = 0; layer < kLayers.size(); ++layer) number = session_->push(layer, gradients[layer]);
    for (size_t layer = 0; layer < kLayers.size(); ++layer) {
      const TensorUpdate update = session_->await(layer, number);
      if (layer != kOpen) continue;
      for (auto& of_worker : sent_) of_worker.clear();
      for (const UpdatePiece& piece : update.pieces) {
        note_update(piece.begin, {piece.dimension, piece.dense, piece.indices, piece.values});
      }
    }
  }
  void end() override {
    const AuditStats audit = session_->stats().audit;
    EXPECT_EQ(audit.imbalance, 0);
    EXPECT_GT(audit.checks, 0u);
    session_->finish();
  }

 private:
  std::unique_ptr<Session> session_;
};

class OverPeers final : public RedsyncModel {
 public:
  OverPeers(const Method& method, peer::PeerGroup& group) {
    for (const Layer& layer : kLayers) {
      OptimizerOptions options = default_options(*find_optimizer("rgc"));
      millrace::testing::set_option(options.job, "momentum", method.momentum);
      SelectionSpec select = selection_from_text(select_of(method)).value();
      if (layer.output) select.alternate_signs = false;
      options.job.select = OptionAccess::selection_of(select);
      options.job.codec_up = index::raw;
      if (method.quantized && !layer.output) millrace::testing::set_option(options.job, "codec_up", "raw+sign_mean");
      EXPECT_TRUE(check_exchange(options));
      auto made = make_exchange({group, layer.size}, options);
      EXPECT_TRUE(made) << made.error().message;
      exchanges_.push_back(std::move(*made));
    }
  }

  void step(uint64_t step, const std::vector<std::vector<float>>& gradients) override {
    for (size_t layer = 0; layer < kLayers.size(); ++layer) {
      Stream gradient{kLayers[layer].size, true, {}, {}};
      gradient.values.assign(gradients[layer].begin(), gradients[layer].end());
      ASSERT_TRUE(exchanges_[layer]->start(step, std::move(gradient)));
    }
    for (size_t layer = 0; layer < kLayers.size(); ++layer) {
      const auto sum = exchanges_[layer]->finish_oldest();
      ASSERT_TRUE(sum) << sum.error().message;
      add_scaled(weights_[layer], sum->sum.view, -kRedsyncRate / static_cast<float>(sum->denominator));
      if (layer != kOpen) continue;
      for (auto& of_worker : sent_) of_worker.clear();
      note_update(0, sum->sum.view);
    }
  }
  void end() override {
    for (const auto& exchange : exchanges_) EXPECT_TRUE(exchange->end());
  }

 private:
  std::vector<std::unique_ptr<Exchange>> exchanges_;
};

/// The paper's training, beside one worker's.
class Paper {
 public:
  explicit Paper(const Method& method) : open_(method.quantized ? "binary search" : "sampled") {
    Reference::Options options{.workers = kRedsyncWorkers, .momentum = kRedsyncMomentum, .kind = method.kind};
    options.quantized = method.quantized;
    options.dense_steps = kRedsyncDenseSteps;
    options.rate = static_cast<double>(kRedsyncRate);
    for (const Layer& layer : kLayers) references_.emplace_back(options, layer.size, layer.output);
  }

  void expect_step(uint64_t step, const RedsyncModel& model) {
    for (size_t layer = 0; layer < kLayers.size(); ++layer) {
      Reference& reference = references_[layer];
      const bool is_open = reference.leaves_open(step);
      EXPECT_EQ(is_open, layer == kOpen && step >= kRedsyncDenseSteps);
      const auto gradient = [layer](uint32_t worker, size_t index, double weight) {
        return targets().gradient(worker, layer, index, weight);
      };
      EXPECT_EQ(reference.step(step, gradient, model.sent()), "") << open_;
      expect_near(step, layer, model.weights(layer), reference.weights());
    }
  }
  uint64_t reuses() const { return references_[kOpen].reuses(); }

 private:
  static void expect_near(uint64_t step, size_t layer, const std::vector<float>& weights,
                          const Reference::Vector& expected) {
    size_t worst = 0;
    double most = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double off = std::abs(static_cast<double>(weights[i]) - expected[i]) / (1 + std::abs(expected[i]));
      if (off > most) most = off, worst = i;
    }
    EXPECT_LT(most, 1e-5) << "step " << step << ", " << kLayers[layer].name << '[' << worst << "] is " << weights[worst]
                          << ", the paper's " << expected[worst];
  }

  const char* open_;
  std::vector<Reference> references_;
};

/// A worker's weights at the end.
using RedsyncWeights = std::vector<std::vector<float>>;

/// paper: beside worker 0.
RedsyncWeights trained_weights(uint32_t worker, RedsyncModel& model, Paper* paper) {
  std::vector<std::vector<float>> gradients(kLayers.size());
  for (size_t layer = 0; layer < kLayers.size(); ++layer) gradients[layer].resize(kLayers[layer].size);
  for (uint64_t step = 0; step < kRedsyncSteps && !::testing::Test::HasFailure(); ++step) {
    for (size_t layer = 0; layer < kLayers.size(); ++layer) {
      const std::vector<float>& weights = model.weights(layer);
      for (size_t i = 0; i < weights.size(); ++i) {
        gradients[layer][i] = targets().gradient(worker, layer, i, weights[i]);
      }
    }
    model.step(step, gradients);
    if (paper != nullptr) paper->expect_step(step, model);
  }
  model.end();
  RedsyncWeights weights;
  for (size_t layer = 0; layer < kLayers.size(); ++layer) weights.push_back(model.weights(layer));
  return weights;
}

template <typename MakeModel>
void expect_the_papers_training(const Method& method, MakeModel make_model) {
  Paper paper(method);
  const auto models = on_ranks<RedsyncWeights>(kRedsyncWorkers, peer::Progress::kByCaller, [&](peer::PeerGroup& group) {
    const auto model = make_model(group);
    return trained_weights(group.rank(), *model, group.rank() == 0 ? &paper : nullptr);
  });
  // A threshold is found once and reused four times in seven steps. Where too many entries reach it, it is found again.
  if (method.quantized) {
    EXPECT_EQ(paper.reuses(), 0u);
  } else {
    EXPECT_GE(paper.reuses(), kRedsyncWorkers * 3u);
  }
  for (size_t layer = 0; layer < kLayers.size(); ++layer) {
    const size_t bytes = kLayers[layer].size * sizeof(float);
    EXPECT_EQ(std::memcmp(models[0][layer].data(), models[1][layer].data(), bytes), 0) << kLayers[layer].name;
    const double before = targets().loss(layer, std::vector<float>(kLayers[layer].size));
    EXPECT_LT(targets().loss(layer, models[0][layer]), before) << kLayers[layer].name;
  }
}

class RedSyncJob : public ::testing::TestWithParam<Method> {};

TEST_P(RedSyncJob, OverServersIsThePapersTraining) {
  // One mean stands for a layer's entries of a sign where one shard has the layer.
  const Shards shards(GetParam().quantized ? 1 : 2);
  expect_the_papers_training(GetParam(), [&](peer::PeerGroup& group) {
    return std::make_unique<OverServers>(GetParam(), group.rank(), shards.addresses(), GetParam().name);
  });
}

TEST_P(RedSyncJob, OverPeersIsThePapersTraining) {
  expect_the_papers_training(GetParam(),
                             [&](peer::PeerGroup& group) { return std::make_unique<OverPeers>(GetParam(), group); });
}

INSTANTIATE_TEST_SUITE_P(Methods, RedSyncJob, ::testing::Values(kRgc, kQuantized),
                         [](const auto& method) { return std::string(method.param.quantized ? "Quantized" : "Rgc"); });

}  // namespace
}  // namespace millrace::training
