#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "protocol/container/container.h"
#include "tests/support/watched_core.h"
#include "tests/worker/toys/toy_cluster.h"
#include "worker/core/session_core.h"

namespace millrace::testing {

/// Worker 0 of a job with two workers on two shards, each with one part of the one tensor; messages are written by
/// hand.
class ScriptedCore : public ::testing::Test {
 protected:
  static constexpr uint64_t kDimension = 200'000;
  static constexpr uint64_t kJob = 7;
  static constexpr uint64_t kNonce = 1'000;
  static constexpr TimeNs kStart = kNsPerS;

  ScriptedCore() {
    config_.nonce = kNonce;
    config_.spec = toy_spec(2, {kDimension});
    config_.spec.parts_per_shard = 1;
    config_.shard_addresses = {"tcp://a:1", "tcp://b:2"};
    membership_.job = kJob;
    membership_.epoch = 3;
    membership_.started = true;
    membership_.members = {{0, 1, kNonce}, {1, 1, 2'000}};
    membership_.shards = {{"tcp://a:1", 1}, {"tcp://b:2", 1}};
  }

  WatchedCore& core() { return *core_; }

  void make() {
    core_ = std::make_unique<WatchedCore>(config_, watch_);
    ASSERT_EQ(core_->layout().parts.size(), 2u);
    ASSERT_EQ(core_->layout().parts[1].shard, 1u);
    core_->start(now_, actions_);
  }

  /// Joined, welcomed by both shards, all workers there.
  void make_running() {
    make();
    for (uint32_t shard = 0; shard < 2; ++shard) {
      core_->on_connected(shard, now_, actions_);
      welcome(shard);
    }
    ASSERT_EQ(core_->phase(), worker::Phase::kRunning);
    actions_.clear();
  }

  protocol::Message from_shard(uint32_t shard, protocol::Body body, SharedBytes payload = {}) const {
    protocol::Message message;
    message.header = {kJob, membership_.epoch, 0, incarnation_, shard, membership_.shards[shard].incarnation};
    message.body = std::move(body);
    message.payload = std::move(payload);
    return message;
  }
  void hear(uint32_t shard, protocol::Body body, SharedBytes payload = {}) {
    core_->on_message(shard, from_shard(shard, std::move(body), std::move(payload)), now_, actions_);
  }
  void welcome(uint32_t shard) {
    protocol::Welcome welcome;
    welcome.membership = membership_;
    hear(shard, welcome);
  }

  /// A sum of (index, value) of the part, local indices.
  static SharedBytes sum_of(const std::vector<std::pair<uint32_t, float>>& entries, uint64_t dimension) {
    Stream stream = Stream::empty(dimension);
    for (const auto& [index, value] : entries) {
      stream.indices.push_back(index);
      stream.values.push_back(value);
    }
    auto container = encode_container(std::as_const(stream).view(), {}, {});
    EXPECT_TRUE(container.has_value());
    return SharedBytes::from(std::move(container->bytes));
  }
  uint64_t part_dimension(uint32_t part) const {
    return core_->layout().parts[part].end - core_->layout().parts[part].begin;
  }
  protocol::Update update_of(uint32_t part, uint64_t step) const {
    protocol::Update update;
    update.part = part;
    update.step = step;
    update.decided_in = membership_.epoch;
    update.contributors = {{0, 1}, {1, 1}};
    update.weight_sum = 2;
    return update;
  }
  void hear_update(uint32_t part, uint64_t step, const std::vector<std::pair<uint32_t, float>>& entries) {
    hear(part, update_of(part, step), sum_of(entries, part_dimension(part)));
  }

  void push(const std::vector<uint32_t>& indices, const std::vector<float>& values) {
    const auto pushed = core_->push_sparse(0, indices, values, 1, now_);
    ASSERT_TRUE(pushed.has_value()) << pushed.error().message;
    while (core_->work(now_, actions_)) {
    }
  }

  /// Lets time pass, deadline by deadline.
  void pass(TimeNs span) {
    const TimeNs end = now_ + span;
    while (core_->next_deadline() <= end) {
      now_ = std::max(now_ + 1, core_->next_deadline());
      core_->on_tick(now_, actions_);
    }
    now_ = end;
  }

  /// Takes the messages of a kind among those to be sent, with their shard; drops the others.
  template <typename T>
  std::vector<std::pair<uint32_t, protocol::Message>> take_sent() {
    std::vector<std::pair<uint32_t, protocol::Message>> taken;
    for (worker::SendAction& send : actions_.sends) {
      if (std::holds_alternative<T>(send.message.body)) taken.emplace_back(send.shard, std::move(send.message));
    }
    actions_.clear();
    return taken;
  }

  /// The entries of the residual as (index, value).
  std::vector<std::pair<uint32_t, float>> residual() const {
    const Stream stream = core_->residual(0);
    std::vector<std::pair<uint32_t, float>> entries;
    for (size_t i = 0; i < stream.values.size(); ++i) {
      if (stream.values[i] != 0) {
        entries.emplace_back(stream.dense ? static_cast<uint32_t>(i) : stream.indices[i], stream.values[i]);
      }
    }
    return entries;
  }

  void expect_ended(ErrorCode code, const std::string& words) {
    ASSERT_EQ(core_->phase(), worker::Phase::kEnded);
    EXPECT_EQ(error_code_name(core_->error()->code), error_code_name(code));
    EXPECT_NE(core_->error()->message.find(words), std::string::npos) << core_->error()->message;
  }

  worker::CoreConfig config_;
  Watch watch_ = Watch::kLedger;
  protocol::Membership membership_;
  uint64_t incarnation_ = 1;  ///< of the worker, as the shards know it
  TimeNs now_ = kStart;
  worker::Actions actions_;
  std::unique_ptr<WatchedCore> core_;
};

}  // namespace millrace::testing
