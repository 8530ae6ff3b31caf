// Arbitrary messages of shards, well formed and not, and anything the shell may do, into a worker's core. It never aborts;
// what entered is in the residual, in flight, or was counted by an update: nothing else may take from it.
#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "protocol/container.h"
#include "protocol/frame.h"
#include "tests/fuzz/byte_source.h"
#include "worker/core/session_core.h"

namespace millrace::testing {
namespace {

class SessionFuzz {
 public:
  explicit SessionFuzz(ByteSource& source) : source_(source) {
    worker::CoreConfig config;
    config.worker = 1;
    config.nonce = 77;
    config.spec.name = "fuzz";
    config.spec.workers = 2;
    config.spec.staleness = source_.below(3);
    config.spec.fuse_below = 1;
    config.spec.tensors.resize(2);
    config.spec.tensors[0].name = "a";
    config.spec.tensors[0].dimension = 30;
    config.spec.tensors[1].name = "b";
    config.spec.tensors[1].dimension = 40;
    config.spec.parts_per_shard = 2;
    if (source_.one_in(2)) {
      config.spec.select.selection = Selection::kTopK;
      config.spec.select.k = 5;
    }
    config.shard_addresses = {"tcp://fuzz:1", "tcp://fuzz:2"};
    config.ledger = worker::LedgerMode::kPerIndex;
    MILLRACE_CHECK(protocol::validate(config.spec).has_value());
    core_ = std::make_unique<worker::SessionCore>(std::move(config));
    for (const auto& bucket : core_->layout().buckets) counted_.emplace_back(bucket.dimension, 0.0);
    view_.job = 1;
    view_.epoch = 3;
    view_.started = true;
    view_.members = {{0, 1, 5}, {1, 1, 77}};
    view_.shards = {{"tcp://fuzz:1", 1}, {"tcp://fuzz:2", 1}};
  }

  void run() {
    core_->start(now_, actions_);
    actions_.clear();
    if (!source_.one_in(4)) join();
    while (!source_.empty()) {
      step();
      core_->end_turn(now_, actions_);
      for (const auto& send : actions_.sends) MILLRACE_CHECK(!protocol::encode_envelope(send.message).empty());
      actions_.clear();
      check_law();
      (void)core_->next_deadline();
      (void)core_->waiting_for();
    }
  }

 private:
  void join() {
    for (uint32_t shard = 0; shard < 2; ++shard) {
      core_->on_connected(shard, now_, actions_);
      welcome(shard, view_, 1);
    }
  }

  void step() {
    const uint32_t shard = source_.below(2);
    switch (source_.below(16)) {
      case 0: return core_->on_connected(shard, now_, actions_);
      case 1: return core_->on_disconnected(shard, "fuzz", now_, actions_);
      case 2: return welcome(shard, view(), source_.one_in(16) ? 9 : 1);
      case 3: return message(shard, protocol::ViewChange{view()});
      case 4: return message(shard, protocol::Duplicate{part(), source_.number(4)});
      case 5: return refuse(shard);
      case 6:
        return message(shard,
                       protocol::Heartbeat{.sequence = 1,
                                           .steps_applied = source_.number(4),
                                           .waited_for = {0},
                                           .decided = {{static_cast<uint32_t>(source_.number(3)), source_.number(4)}}});
      case 7: return last_words(shard);
      case 8: return raw(shard);
      case 9:
        now_ += static_cast<TimeNs>(source_.byte()) * kNsPerMs * (source_.one_in(8) ? 20 : 1);
        return core_->on_tick(now_, actions_);
      case 10:
      case 11: return push();
      case 12:
        while (core_->work(now_, actions_)) {
        }
        return;
      case 13: (void)core_->settle_one(); return;
      default: return update(shard);
    }
  }

  uint32_t part() {
    return static_cast<uint32_t>(source_.number(static_cast<uint32_t>(core_->layout().parts.size()) + 1));
  }

  protocol::JobView view() {
    protocol::JobView next = view_;
    if (!source_.one_in(4)) {
      if (source_.one_in(2)) next.epoch = ++view_.epoch;
      return next;
    }
    next.epoch = source_.number(8);
    if (source_.one_in(8)) next.members[1].life = source_.number(3);
    if (source_.one_in(8)) next.members.pop_back();
    if (source_.one_in(8)) next.shards[0].life = source_.number(3);
    if (source_.one_in(8)) next.job = source_.number(3);
    if (source_.one_in(8)) next.shards.pop_back();
    if (source_.one_in(8)) next.started = false;
    return next;
  }

  void message(uint32_t shard, protocol::Body body, SharedBytes payload = {}) {
    protocol::Message made;
    made.header = {.job = source_.one_in(32) ? source_.number(3) : 1,
                   .epoch = source_.one_in(4) ? source_.number(8) : core_->view().epoch,
                   .worker = source_.one_in(32) ? 0u : 1u,
                   .life = source_.one_in(32) ? source_.number(3) : 1,
                   .shard = source_.one_in(32) ? 1 - shard : shard,
                   .shard_life = source_.one_in(64) ? source_.number(3) : 1};
    made.body = std::move(body);
    made.payload = std::move(payload);
    core_->on_message(shard, std::move(made), now_, actions_);
  }

  void welcome(uint32_t shard, const protocol::JobView& told, uint32_t version) {
    protocol::Welcome welcome;
    welcome.version = version;
    welcome.view = told;
    message(shard, std::move(welcome));
  }

  void refuse(uint32_t shard) {
    protocol::Refuse refuse;
    refuse.code = source_.one_in(2) ? ErrorCode::kUnavailable : ErrorCode::kMalformed;
    refuse.retry = !source_.one_in(16);
    refuse.about_contribution = !source_.one_in(4);
    refuse.part = part();
    refuse.step = source_.number(4);
    message(shard, std::move(refuse));
  }

  void last_words(uint32_t shard) {
    if (!source_.one_in(16)) return;
    if (source_.one_in(2)) return message(shard, protocol::Abort{});
    if (source_.one_in(2)) return message(shard, protocol::Goodbye{});
    message(shard, protocol::Settled{part(), source_.number(4), source_.one_in(2)});
  }

  void raw(uint32_t shard) {
    const ByteBuffer envelope = source_.bytes(255);
    auto decoded = protocol::decode_message(envelope, SharedBytes::from(source_.bytes(60)), {});
    if (!decoded) return core_->on_bad_message(shard, decoded.error(), now_, actions_);
    core_->on_message(shard, std::move(*decoded), now_, actions_);
  }

  void push() {
    const uint32_t tensor = source_.below(2);
    std::vector<uint32_t> indices;
    std::vector<float> values;
    for (uint32_t i = source_.below(6); i > 0; --i) {
      indices.push_back(source_.below(32));
      values.push_back(source_.one_in(64) ? INFINITY : static_cast<float>(source_.below(9)) - 4);
    }
    (void)core_->push_sparse(tensor, indices, values, 1, now_);
  }

  /// The sum is whatever; the contributors may or may not name this worker, and the sum carry some or all of what it sent.
  void update(uint32_t shard) {
    const uint32_t number = part();
    const auto& parts = core_->layout().parts;
    protocol::Update body;
    body.part = number;
    body.step = number < parts.size() && !source_.one_in(8) ? core_->part_steps_applied(number) + source_.below(3)
                                                            : source_.number(4);
    body.decided_in = source_.number(8);
    body.whole_sum = source_.one_in(2);
    body.weight_sum = 1;
    body.contributors.push_back({0, 1});
    if (source_.one_in(2)) body.contributors.push_back({1, source_.one_in(16) ? 2u : 1u});
    Stream<float> sum = Stream<float>::empty(
        number < parts.size() && !source_.one_in(16) ? parts[number].end - parts[number].begin : 3);
    for (uint32_t index = source_.below(3); index < sum.dimension; index += 1 + source_.below(9)) {
      sum.indices.push_back(index);
      sum.values.push_back(1);
    }
    SharedBytes payload =
        source_.one_in(16) ? SharedBytes::from(source_.bytes(90))
                           : SharedBytes::from(std::move(encode_container<float>(sum.view(), sum.view(), {})->bytes));
    message(shard, std::move(body), std::move(payload));
  }

  /// What is neither held nor lost by name was counted. It may change only with a delivery.
  void check_law() {
    for (uint32_t bucket = 0; bucket < counted_.size(); ++bucket) {
      const auto entered = core_->entered(bucket);
      const auto ledger = core_->ledger(bucket);
      std::vector<double> rest(entered.begin(), entered.end());
      const auto take = [&rest](const StreamView<float>& stream, uint64_t begin) {
        for (size_t i = 0; i < stream.values.size(); ++i)
          rest[begin + (stream.dense ? i : stream.indices[i])] -= static_cast<double>(stream.values[i]);
      };
      const Stream<float> residual = core_->residual(bucket);
      take(residual.view(), 0);
      for (const auto& out : core_->outstanding(bucket)) take(out.sent, out.begin);
      for (size_t i = 0; i < rest.size(); ++i) rest[i] -= ledger[i];
      const bool delivered = applied(bucket) != applied_before_[bucket];
      if (!delivered) MILLRACE_CHECK(rest == counted_[bucket], bucket);
      counted_[bucket] = std::move(rest);
      applied_before_[bucket] = applied(bucket);
    }
  }

  uint64_t applied(uint32_t bucket) const {
    const auto& planned = core_->layout().buckets[bucket];
    uint64_t steps = 0;
    for (uint32_t number = planned.first_part; number < planned.first_part + planned.part_count; ++number)
      steps += core_->part_steps_applied(number);
    return steps;
  }

  ByteSource& source_;
  TimeNs now_ = kNsPerS;
  std::unique_ptr<worker::SessionCore> core_;
  worker::Actions actions_;
  protocol::JobView view_;
  std::vector<std::vector<double>> counted_;
  uint64_t applied_before_[2] = {0, 0};
};

}  // namespace
}  // namespace millrace::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::testing::ByteSource source(data, std::min<size_t>(size, 4'096));
  millrace::testing::SessionFuzz(source).run();
  return 0;
}
