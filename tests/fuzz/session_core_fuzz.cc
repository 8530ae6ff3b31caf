// Feeds arbitrary messages of shards, well formed and not, and any action of the shell to a worker's core. The worker
// is evicted and rejoins, restarts from its saved state, gives and takes snapshots, is cut off.
// The core never aborts. While it is a synced member, each value that entered is in the residual, in flight, or was
// carried by an update that counted it. Where updates wait for acknowledgements, the application gets none earlier.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/container/container.h"
#include "protocol/messages/frame.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/updates_said.h"
#include "tests/support/watched_core.h"
#include "worker/core/session_core.h"

namespace millrace::testing {
namespace {

class SessionFuzz {
 public:
  explicit SessionFuzz(ByteSource& source) : source_(source) {
    worker::CoreConfig& config = config_;
    config.worker = 1;
    config.nonce = 77;
    config.has_weights = !source_.one_in(4);
    config.takes_merged = config.has_weights && source_.one_in(2);
    config.returns = config.has_weights && source_.one_in(4);
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
      config.spec.select.selection = SelectionId::kTopK;
      config.spec.select.k = 5;
    }
    if (source_.one_in(3)) config.spec.mode = protocol::Mode::kAsynchronous;
    if (source_.one_in(4)) config.spec.apply_after_acks = config.spec.workers_min = 2;
    config.shard_addresses = {"tcp://fuzz:1", "tcp://fuzz:2"};
    MILLRACE_CHECK(protocol::validate(config.spec).has_value());
    core_ = std::make_unique<WatchedCore>(config);
    for (const auto& bucket : core_->layout().buckets) counted_.emplace_back(bucket.dimension, 0.0);
    membership_.job = 1;
    membership_.epoch = 3;
    membership_.started = true;
    membership_.members = {{0, 1, 5}, {1, 1, 77}};
    membership_.shards = {{"tcp://fuzz:1", 1}, {"tcp://fuzz:2", 1}};
  }

  void run() {
    core_->start(now_, actions_);
    actions_.clear();
    if (!source_.one_in(4)) {
      join();
      MILLRACE_CHECK(core_->phase() == worker::Phase::kRunning);  // else no message would reach the rounds
    }
    while (!source_.empty()) {
      updates_.note_in_flight(*core_);
      step();
      for (const worker::GiveWeights& asked : std::exchange(actions_.give_weights, {})) {
        const auto& given = core_->layout().parts.at(asked.part);
        core_->give_weights(asked, std::vector<float>(given.end - given.begin, 1.0f), now_, actions_);
      }
      for (const uint32_t shard : std::exchange(actions_.connects, {})) {
        if (source_.one_in(4)) continue;
        core_->on_connected(shard, now_, actions_);
        exactly([&] { welcome(shard, membership_, drawn_version()); });
      }
      core_->end_pass(now_, actions_);
      for (const auto& send : actions_.sends) MILLRACE_CHECK(!protocol::encode_envelope(send.message).empty());
      for (const auto& delivered : actions_.delivered) check_delivered(delivered);
      check_law();
      actions_.clear();
      (void)core_->next_deadline();
      (void)core_->waiting_for();
    }
  }

 private:
  void join() {
    exactly([this] {
      for (uint32_t shard = 0; shard < 2; ++shard) {
        core_->on_connected(shard, now_, actions_);
        welcome(shard, membership_, drawn_version());
      }
    });
  }

  void step() {
    const uint32_t shard = source_.below(2);
    steady_ = true;
    switch (source_.below(22)) {
      case 0: return core_->on_connected(shard, now_, actions_);
      case 1: return core_->on_disconnected(shard, {ErrorCode::kUnavailable, "fuzz"}, now_, actions_);
      case 2:
        steady_ = false;
        return welcome(shard, membership(), source_.one_in(16) ? wrong_version() : drawn_version());
      case 3: steady_ = false; return message(shard, protocol::MembershipChange{membership(), {}});
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
        return updates_.note_in_flight(*core_);
      case 13: (void)core_->resolve_one_deferred(); return;
      case 14:
      case 15:
      case 16: return about_returns(shard);
      case 17:
      case 18: return replicated();
      default: return update(shard);
    }
  }

  /// Enough workers have the steps below.
  void replicated() {
    const uint32_t number = part();
    message(shard_of(number), protocol::Ack{{{number, steps_of(number) + source_.below(3)}}});
  }

  /// Removals, settling, snapshots and what recovering shards ask; now and then all that brings it back, in order.
  void about_returns(uint32_t shard) {
    steady_ = false;
    switch (source_.below(10)) {
      case 0: return exactly([this] { removed(); });
      case 1: return exactly([this] { run_all_until_chosen(); });
      case 2: return become(protocol::MemberState::kSynced);
      case 3: return settle(part(), source_.one_in(2));
      case 4: return snapshot(part());
      case 5: return message(shard, protocol::Collect{});
      case 6: return message(shard, protocol::Fetch{part(), source_.number(4)});
      case 7: return message(shard, protocol::SnapshotRequest{0, source_.number(3), {part()}});
      case 8: return exactly([&] { another_log(shard); });
      default: return restart();
    }
  }

  protocol::Member& self() {
    const auto found = std::ranges::find(membership_.members, 1u, &protocol::Member::worker);
    return found == membership_.members.end()
               ? membership_.members.emplace_back(protocol::Member{1, incarnation_, config_.nonce})
               : *found;
  }

  void tell_all() {
    for (uint32_t shard = 0; shard < 2; ++shard) message(shard, protocol::MembershipChange{membership_, {}});
  }

  /// Removes another worker, as its Goodbye would. Where the worker asks, admits it under the next incarnation.
  void removed() {
    std::erase_if(membership_.members, [](const protocol::Member& member) { return member.worker == 1; });
    ++membership_.epoch;
    tell_all();
    if (source_.one_in(4)) return;
    ++incarnation_;
    self() = {1, incarnation_, config_.nonce, protocol::MemberState::kJoining};
    ++membership_.epoch;
    for (uint32_t shard = 0; shard < 2; ++shard) welcome(shard, membership_, drawn_version());
  }

  void become(protocol::MemberState state) {
    self().state = state;
    ++membership_.epoch;
    tell_all();
  }

  void run_all_until_chosen() {
    for (uint32_t number = 0; number < core_->layout().parts.size(); ++number) {
      if (source_.one_in(4)) snapshot(number);
      settle(number, true);
    }
    if (!source_.one_in(4)) become(protocol::MemberState::kSynced);
  }

  uint32_t shard_of(uint32_t number) {
    const auto& parts = core_->layout().parts;
    return number < parts.size() && !wrong(16) ? parts[number].shard : source_.below(2);
  }
  uint64_t steps_of(uint32_t number) const {
    return number < core_->layout().parts.size() ? core_->part_steps_applied(number) : 0;
  }

  void settle(uint32_t number, bool helpful) {
    protocol::Settle body;
    body.part = number;
    body.decided = steps_of(number) + (exact_ ? 4 : 0) + source_.number(3);
    body.branch = membership_.branches;
    body.on_log = helpful || source_.one_in(2);
    body.weights = static_cast<protocol::Settle::Weights>(helpful ? 1 + source_.below(2) : 1 + source_.below(3));
    if (source_.one_in(2)) {
      auto& counted = body.counted.emplace();
      counted.worker = 1;
      counted.incarnation = 1 + source_.number(3);
      counted.last_step = source_.number(4);
      counted.counted_mask = source_.number(8);
      if (core_->spec().mode == protocol::Mode::kAsynchronous) counted.sequence = source_.number(4);
      if (counted.incarnation > 1 && counted.last_step > 0 && source_.one_in(2))
        counted.earlier_incarnations = {{1, 0}};
    }
    message(shard_of(number), std::move(body));
  }

  void snapshot(uint32_t number) {
    const auto& parts = core_->layout().parts;
    const uint64_t dimension = number < parts.size() ? parts[number].end - parts[number].begin : 7;
    protocol::Snapshot body;
    body.part = number;
    body.for_worker = 1;
    body.for_incarnation = incarnation_;
    body.n = source_.number(4);
    body.decided_in = source_.number(8);
    body.offset = wrong(8) ? source_.number(9) : 0;
    const uint64_t values = wrong(4) ? source_.below(50) : dimension;
    ByteBuffer bytes(values * sizeof(float));
    if (!bytes.empty() && source_.one_in(16)) std::ranges::fill(bytes, uint8_t{0xff});
    body.payload_hash = wrong(16) ? 0 : hash64(bytes);
    message(shard_of(number), std::move(body), SharedBytes::from(std::move(bytes)));
  }

  /// A shard was started again, or the log was cut to this worker's state or the other's.
  void another_log(uint32_t shard) {
    if (membership_.branches >= 20) return;
    const uint64_t parent = membership_.branches;
    ++membership_.branches;
    ++membership_.epoch;
    if (source_.one_in(2)) {
      membership_.activations.push_back({shard, membership_.branches, parent});
      ++membership_.shards[shard].incarnation;
      shard_incarnation_[shard] = membership_.shards[shard].incarnation;
    } else {
      for (uint32_t each = 0; each < 2; ++each) membership_.activations.push_back({each, membership_.branches, parent});
      membership_.cut = membership_.epoch;
      membership_.cut_worker = source_.below(2);
      if (membership_.cut_worker == 1) self().state = protocol::MemberState::kSynced;
    }
    tell_all();
  }

  /// Ends the process. Another one continues with the saved state, or with nothing.
  void restart() {
    if (!source_.one_in(4)) return;
    const bool saved = source_.one_in(2);
    config_.saved.reset();
    if (saved) {
      auto decoded = worker::decode_saved_state(worker::encode_saved_state(core_->saved_state()));
      MILLRACE_CHECK(decoded.has_value());
      config_.saved = std::move(*decoded);
    }
    ++config_.nonce;
    config_.returns = config_.has_weights;
    core_ = std::make_unique<WatchedCore>(config_);
    core_->start(now_, actions_);
    actions_.clear();
    if (source_.one_in(4)) return;
    ++incarnation_;
    self() = {1, incarnation_, config_.nonce,
              config_.has_weights ? protocol::MemberState::kJoining : protocol::MemberState::kSynced};
    ++membership_.epoch;
    join();
  }

  uint32_t part() {
    return static_cast<uint32_t>(source_.number(static_cast<uint32_t>(core_->layout().parts.size()) + 1));
  }

  protocol::Membership membership() {
    protocol::Membership next = membership_;
    if (!source_.one_in(4)) {
      if (source_.one_in(2)) next.epoch = ++membership_.epoch;
      return next;
    }
    next.epoch = source_.number(8);
    if (source_.one_in(8) && next.members.size() > 1) next.members[1].incarnation = source_.number(3);
    if (source_.one_in(8)) next.members.pop_back();
    if (source_.one_in(8)) next.shards[0].incarnation = source_.number(3);
    if (source_.one_in(8)) next.job = source_.number(3);
    if (source_.one_in(8)) next.shards.pop_back();
    if (source_.one_in(8)) next.started = false;
    return next;
  }

  bool wrong(uint32_t bound) { return !exact_ && source_.one_in(bound); }
  /// The messages that it sends have no wrong header.
  template <typename Say>
  void exactly(Say say) {
    exact_ = true;
    say();
    exact_ = false;
  }

  void message(uint32_t shard, protocol::Body body, SharedBytes payload = {}) {
    protocol::Message made;
    made.header = {.job = wrong(32) ? source_.number(3) : 1,
                   .epoch = wrong(4) ? source_.number(8) : core_->membership().epoch,
                   .worker = wrong(32) ? 0u : 1u,
                   .incarnation = wrong(32) ? source_.number(3) : incarnation_,
                   .shard = wrong(32) ? 1 - shard : shard,
                   .shard_incarnation = wrong(64) ? source_.number(3) : shard_incarnation_[shard]};
    made.body = std::move(body);
    made.payload = std::move(payload);
    note(made);
    core_->on_message(shard, std::move(made), now_, actions_);
  }

  void note(const protocol::Message& message) {
    updates_.heard(message);
    const auto* ack = std::get_if<protocol::Ack>(&message.body);
    if (ack == nullptr) return;
    for (const protocol::Ack::Entry& entry : ack->entries)
      replicated_[entry.part] = std::max(replicated_[entry.part], entry.n);
  }

  /// Where updates wait until enough workers have them, nothing is handed out that was never said to.
  void check_delivered(const worker::DeliveredUpdate& delivered) {
    MILLRACE_CHECK(delivered.part < core_->layout().parts.size());
    if (!protocol::applies_after_acks(config_.spec) || delivered.delivered_before) return;
    const uint64_t needs = delivered.replaces ? delivered.steps : delivered.step + 1;
    MILLRACE_CHECK(replicated_[delivered.part] >= needs, delivered.part, needs, replicated_[delivered.part]);
  }

  /// Returns a version that this build speaks. The links of one session may differ in it.
  uint32_t drawn_version() {
    return protocol::kProtocolVersionMin +
           source_.below(protocol::kProtocolVersion - protocol::kProtocolVersionMin + 1);
  }
  uint32_t wrong_version() {
    return source_.one_in(2) ? protocol::kProtocolVersion + 1 : protocol::kProtocolVersionMin - 1;
  }

  void welcome(uint32_t shard, const protocol::Membership& told, uint32_t version) {
    protocol::Welcome welcome;
    welcome.version = version;
    welcome.membership = told;
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
    message(shard, protocol::StepDecided{part(), source_.number(4), source_.one_in(2)});
  }

  void raw(uint32_t shard) {
    const ByteBuffer envelope = source_.bytes(255);
    auto decoded = protocol::decode_message(envelope, SharedBytes::from(source_.bytes(60)), {});
    if (!decoded) return core_->on_bad_message(shard, decoded.error(), now_, actions_);
    note(*decoded);
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

  /// Several steps, the last of which it was; often the next ones.
  void merge(protocol::Update& body) {
    const uint32_t steps = 2 + source_.below(3);
    body.contributors.clear();
    if (!source_.one_in(4) || body.step + 1 < steps) body.step += steps - 1;
    for (uint32_t i = 0; i < steps; ++i) {
      const bool own = source_.one_in(2);
      const uint64_t incarnation = own ? (source_.one_in(16) ? source_.number(3) : incarnation_) : 1;
      body.merged.push_back({{own ? 1u : 0u, incarnation, source_.number(4)}, source_.one_in(16) ? 2.0 : 1.0, i});
    }
  }

  /// Sends an update with any sum. The contributors may or may not name this worker, and the sum may carry some or all
  /// of its entries.
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
    const bool asynchronous = core_->spec().mode == protocol::Mode::kAsynchronous;
    body.contributors.push_back({0, 1});
    if (source_.one_in(2)) {
      if (asynchronous) body.contributors.clear();
      body.contributors.push_back({1, source_.one_in(16) ? source_.number(3) : incarnation_});
      if (asynchronous) body.contributors.back().sequence = source_.number(4);
    }
    if (asynchronous && source_.one_in(4)) merge(body);
    body.branch = membership_.branches;
    Stream sum =
        Stream::empty(number < parts.size() && !source_.one_in(16) ? parts[number].end - parts[number].begin : 3);
    for (uint32_t index = source_.below(3); index < sum.dimension; index += 1 + source_.below(9)) {
      sum.indices.push_back(index);
      sum.values.push_back(1);
    }
    SharedBytes payload = source_.one_in(16)
                              ? SharedBytes::from(source_.bytes(90))
                              : SharedBytes::from(std::move(encode_container(sum.view(), sum.view(), {})->bytes));
    message(shard, std::move(body), std::move(payload));
  }

  /// Checks the law: a value that is neither held nor counted as lost was counted by an update. It may change only with
  /// a delivery, or when the worker rejoins. In mode synchronous a delivery changes it by the entries that it carries.
  void check_law() {
    const worker::Phase phase = core_->phase();
    const bool synced = phase == worker::Phase::kRunning || phase == worker::Phase::kFinishing;
    const bool strict = steady_ && synced && was_synced_;
    was_synced_ = synced;
    const bool synchronous = core_->spec().mode == protocol::Mode::kSynchronous;
    const bool exact = strict && synchronous && updates_.add_carried(*core_, actions_.delivered, counted_);
    for (uint32_t bucket = 0; bucket < counted_.size(); ++bucket) {
      std::vector<double> rest = core_->handed_over(bucket);
      const bool delivered = applied(bucket) != applied_before_[bucket];
      if (exact || (strict && !delivered)) MILLRACE_CHECK(rest == counted_[bucket], bucket);
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
  worker::CoreConfig config_;
  uint64_t incarnation_ = 1;
  uint64_t shard_incarnation_[2] = {1, 1};
  bool exact_ = false;
  bool steady_ = true;  ///< the last step did not concern a rejoin
  bool was_synced_ = false;
  std::unique_ptr<WatchedCore> core_;
  worker::Actions actions_;
  protocol::Membership membership_;
  UpdatesSaid updates_{1};
  std::map<uint32_t, uint64_t> replicated_;  ///< by part: the most that any shard has said
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
