#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "tests/worker/training/peers/on_ranks.h"
#include "worker/training/peers/train_over_peers.h"

namespace millrace::training::testing {

/// Holds the result of a training on a rank.
struct Trained {
  std::string error = "not run";
  std::vector<float> weights;
  std::vector<PeerEpoch> epochs;
  uint64_t steps = 0;
  bool interrupted = false;
};

template <typename ShareOf>
std::vector<Trained> train(uint32_t ranks, const PeerTrainOptions& options, ShareOf data_of, int stop_rank = -1) {
  const auto progress = staleness_of(options.options) > 0 ? peer::Progress::kByThread : peer::Progress::kByCaller;
  return on_ranks<Trained>(ranks, progress, [&](peer::PeerGroup& group) {
    const Dataset data = data_of(group.rank());
    const std::atomic<bool> stop = static_cast<int>(group.rank()) == stop_rank;
    Trained trained;
    const auto result = train_over_peers(group, data, nullptr, options, {}, stop);
    trained.error = result ? "" : result.error().message;
    if (!result) return trained;
    for (uint64_t i = 0; i <= result->model.dimension(); ++i) {
      trained.weights.push_back(static_cast<float>(result->model.weight(i)));
    }
    trained.epochs = result->epochs;
    trained.steps = result->steps;
    trained.interrupted = result->interrupted;
    return trained;
  });
}

inline void expect_alike(const std::vector<Trained>& ranks) {
  for (const Trained& one : ranks) {
    ASSERT_EQ(one.error, "");
    ASSERT_EQ(one.weights.size(), ranks[0].weights.size());
    EXPECT_EQ(std::memcmp(one.weights.data(), ranks[0].weights.data(), one.weights.size() * sizeof(float)), 0);
  }
}

inline void expect_near(const std::vector<float>& weights, const std::vector<double>& expected, double off) {
  ASSERT_EQ(weights.size(), expected.size());
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(static_cast<double>(weights[i]), expected[i], off) << i;
}

}  // namespace millrace::training::testing
