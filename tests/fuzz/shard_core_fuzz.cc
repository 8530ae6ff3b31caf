// Arbitrary messages, well formed and not, from anybody and in any order, into a shard's core. It never aborts; what it
// decides stays decided; what it says of a step is one thing to all.
#include <algorithm>
#include <map>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/container.h"
#include "protocol/frame.h"
#include "protocol/layout.h"
#include "server/shard_core.h"
#include "tests/fuzz/byte_source.h"

namespace millrace::testing {
namespace {

class ShardFuzz {
 public:
  explicit ShardFuzz(ByteSource& source)
      : source_(source), table_(protocol::open_memory_table(protocol::make_memory_table_state())) {
    spec_.name = "fuzz";
    spec_.workers = 2;
    spec_.tensors.resize(2);
    spec_.tensors[0].name = "a";
    spec_.tensors[0].dimension = 40;
    spec_.tensors[1].name = "b";
    spec_.tensors[1].dimension = 9'000;
    spec_.fuse_below = 1;
    spec_.parts_per_shard = 2;
    spec_.staleness = source_.below(3);
    spec_.dead_after_ms = 1'000;
    spec_.heartbeat_ms = 100;
    if (source_.one_in(2)) {
      spec_.reselect.reselect = protocol::Reselect::kTopK;
      spec_.reselect.k = 3;
      spec_.reselect.threshold_period = 1 + source_.below(2);
    }
    MILLRACE_CHECK(protocol::validate(spec_).has_value());  // a refused job would let nothing through
    layout_ = protocol::plan_layout(spec_, 2);
    MILLRACE_CHECK(table_->start_shard(0, 2, "tcp://fuzz:1").has_value());
    if (!source_.one_in(3)) MILLRACE_CHECK(table_->start_shard(1, 2, "tcp://fuzz:2").has_value());
    server::ShardConfig config;
    config.shard = 0;
    config.shard_count = 2;
    config.life = 1;
    if (source_.one_in(4)) config.limits.job_memory_bytes_max = 20'000;
    core_ = std::make_unique<server::ShardCore>(config, *table_, now_);
  }

  void run() {
    if (!source_.one_in(8)) greet();
    while (!source_.empty()) {
      step();
      carry_out();
      if (core_->stopped()) return;
      (void)core_->status(now_);
      (void)core_->next_deadline();
    }
  }

 private:
  void step() {
    switch (source_.below(14)) {
      case 9: return round();
      case 0: return hello();
      case 1: return core_->on_message(peer(), raw(), now_, actions_);
      case 2: return core_->on_malformed({ErrorCode::kMalformed, "fuzz"}, now_, actions_);
      case 3: return finish_task();
      case 4: return tick();
      case 5: return deliver(protocol::Ack{{{part(), source_.number(4)}, {part(), source_.number(4)}}});
      case 6:
        return deliver(protocol::Heartbeat{.sequence = 1,
                                           .steps_applied = source_.number(4),
                                           .waited_for = {},
                                           .decided = {},
                                           .digests = {{part(), source_.number(4), source_.number(2)}}});
      case 7: return shard_message();
      case 8: return goodbye();
      default: return contribution();
    }
  }

  protocol::PeerId peer() { return {std::string(1, static_cast<char>('a' + source_.below(4)))}; }
  uint32_t part() { return static_cast<uint32_t>(source_.number(static_cast<uint32_t>(layout_.parts.size()) + 1)); }

  /// Usually what the well-behaved worker behind that peer would say.
  void deliver(protocol::Body body, SharedBytes payload = {}) {
    const protocol::PeerId from = peer();
    const uint32_t worker =
        source_.one_in(8) ? static_cast<uint32_t>(source_.number(3)) : static_cast<uint32_t>(from.bytes[0] - 'a') % 2;
    protocol::Message message;
    message.header = {.job = source_.one_in(16) ? source_.number(3) : 1,
                      .epoch = source_.one_in(4) ? source_.number(6) : 3,
                      .worker = worker,
                      .life = source_.one_in(8) ? source_.number(3) : 1,
                      .shard = source_.one_in(32) ? 1u : 0u,
                      .shard_life = source_.one_in(32) ? source_.number(3) : 1};
    message.body = std::move(body);
    message.payload = std::move(payload);
    core_->on_message(from, std::move(message), now_, actions_);
  }

  /// Both workers join, the other shard says who it is: most of what follows is said to a running job.
  void greet() {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      protocol::Hello hello;
      hello.nonce = 100 + worker;
      hello.spec = spec_;
      hello.shard_count = 2;
      hello.layout_hash = protocol::layout_hash(layout_);
      protocol::Message message;
      message.header.worker = worker;
      message.body = std::move(hello);
      core_->on_message({std::string(1, static_cast<char>('a' + worker))}, std::move(message), now_, actions_);
      carry_out();
    }
  }

  /// What two well-behaved workers would send into the next step of every part, each part's in one go.
  void round() {
    for (const protocol::PartLayout& planned : layout_.parts) {
      if (planned.shard != 0) continue;
      uint64_t step = 0;
      while (updates_.contains({1, planned.part, step})) ++step;
      for (uint32_t worker = 0; worker < 2; ++worker) {
        Stream<float> stream = Stream<float>::empty(planned.end - planned.begin);
        stream.indices.push_back(source_.byte() % static_cast<uint32_t>(stream.dimension));
        stream.values.push_back(static_cast<float>(1 + source_.below(4)));
        protocol::Message message;
        message.header = {.job = 1, .epoch = 3, .worker = worker, .life = 1, .shard = 0, .shard_life = 1};
        message.payload =
            SharedBytes::from(std::move(encode_container<float>(stream.view(), stream.view(), {})->bytes));
        message.body = protocol::Contribution{
            .part = planned.part, .step = step, .payload_hash = container_checksum(message.payload.bytes)};
        core_->on_message({std::string(1, static_cast<char>('a' + worker))}, std::move(message), now_, actions_);
        carry_out();
      }
    }
    for (uint32_t most = source_.below(40); most > 0 && !tasks_.empty(); --most) {
      finish_task();
      carry_out();
    }
  }

  void hello() {
    protocol::Hello hello;
    const protocol::PeerId from = peer();
    const uint32_t worker = static_cast<uint32_t>(from.bytes[0] - 'a') % 2;
    hello.nonce = source_.one_in(8) ? source_.number(4) : 100 + worker;
    hello.spec = spec_;
    if (source_.one_in(16)) hello.spec.tensors[0].dimension = source_.number(50);
    if (source_.one_in(16)) hello.spec.name = "other";
    hello.shard_count = source_.one_in(16) ? static_cast<uint32_t>(source_.number(4)) : 2;
    hello.layout_hash = source_.one_in(16) ? 1 : protocol::layout_hash(layout_);
    protocol::Message message;
    message.header.worker = source_.one_in(16) ? static_cast<uint32_t>(source_.number(4)) : worker;
    message.header.job = source_.one_in(8) ? source_.number(3) : 0;
    message.body = std::move(hello);
    core_->on_message(from, std::move(message), now_, actions_);
  }

  void contribution() {
    const uint32_t number = part();
    protocol::Contribution body;
    body.part = number;
    body.step = source_.number(4);
    body.weight = source_.one_in(16) ? -1.0 : 1.0;
    SharedBytes payload;
    if (source_.one_in(8)) {
      payload = SharedBytes::from(source_.bytes(200));
    } else {
      const uint64_t dimension = number < layout_.parts.size() && !source_.one_in(16)
                                     ? layout_.parts[number].end - layout_.parts[number].begin
                                     : 7;
      Stream<float> stream = Stream<float>::empty(dimension);
      const uint32_t index = source_.byte() % static_cast<uint32_t>(dimension);
      stream.indices.push_back(index);
      stream.values.push_back(static_cast<float>(1 + source_.below(4)));
      payload = SharedBytes::from(std::move(encode_container<float>(stream.view(), stream.view(), {})->bytes));
    }
    body.payload_hash = source_.one_in(16) ? 1 : container_checksum(payload.bytes);
    deliver(body, std::move(payload));
  }

  protocol::Message raw() {
    const ByteBuffer envelope = source_.bytes(255);
    auto message = protocol::decode_message(envelope, SharedBytes::from(source_.bytes(60)), {});
    return message ? std::move(*message) : protocol::Message{};
  }

  void goodbye() {
    if (!source_.one_in(4)) return;  // a job that is over tells nothing more
    protocol::Goodbye goodbye;
    goodbye.reason = static_cast<protocol::Goodbye::Reason>(1 + source_.below(3));
    deliver(std::move(goodbye));
  }

  void shard_message() {
    protocol::Message message;
    message.header = {
        .job = 1, .epoch = 1, .worker = 0, .life = 0, .shard = source_.one_in(8) ? 0u : 1u, .shard_life = 1};
    if (source_.one_in(2)) {
      protocol::ShardHello hello;
      const auto map = table_->shard_map();
      hello.shard_map_hash = source_.one_in(8) || !map ? 1 : map_hash_;
      message.body = hello;
    } else {
      MagnitudeHistogram histogram;
      std::vector<float> values(source_.below(6), 2.0f);
      histogram.add(std::span<const float>(values));
      ByteBuffer bytes;
      histogram.encode(bytes);
      message.payload = SharedBytes::from(source_.one_in(8) ? source_.bytes(40) : std::move(bytes));
      protocol::ThresholdHistogram body{static_cast<uint32_t>(source_.number(3)), source_.number(4)};
      body.payload_hash =
          source_.one_in(8) ? 0 : protocol::histogram_hash(message.header.job, body, message.payload.bytes);
      message.body = body;
    }
    core_->on_message({"s"}, std::move(message), now_, actions_);
  }

  void tick() {
    now_ += static_cast<TimeNs>(source_.byte()) * (source_.one_in(16) ? 100 : 1) * kNsPerMs;
    if (source_.one_in(64)) core_->begin_shutdown(now_, actions_);
    if (source_.one_in(128)) (void)table_->start_shard(0, 2, "tcp://fuzz:3");
    core_->on_tick(now_, actions_);
  }

  void finish_task() {
    if (tasks_.empty()) return;
    const size_t at = source_.below(static_cast<uint32_t>(std::min<size_t>(tasks_.size(), 255)));
    const auto task = tasks_[at];
    tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(at));
    task->run();
    core_->on_task_done(task, now_, actions_);
  }

  void carry_out() {
    for (const auto& send : actions_.to_peers) {
      if (const auto* update = std::get_if<protocol::Update>(&send.message.body)) check_update(send.message, *update);
      MILLRACE_CHECK(!protocol::encode_envelope(send.message).empty());
    }
    // What the other shard would be told is how a fuzzer learns to speak for it.
    for (const auto& send : actions_.to_shards) {
      if (const auto* hello = std::get_if<protocol::ShardHello>(&send.message.body)) map_hash_ = hello->shard_map_hash;
    }
    tasks_.insert(tasks_.end(), actions_.tasks.begin(), actions_.tasks.end());
    actions_.clear();
  }

  void check_update(const protocol::Message& message, const protocol::Update& update) {
    MILLRACE_CHECK(update.part < layout_.parts.size(), update.part);
    MILLRACE_CHECK(!update.contributors.empty(), update.part, update.step);
    for (size_t i = 1; i < update.contributors.size(); ++i) {
      MILLRACE_CHECK(update.contributors[i - 1].worker < update.contributors[i].worker, update.part, update.step);
    }
    const auto [known, fresh] =
        updates_.try_emplace({message.header.job, update.part, update.step}, hash64(message.payload.bytes));
    MILLRACE_CHECK(known->second == hash64(message.payload.bytes), update.part, update.step);
    const protocol::PartLayout& range = layout_.parts[update.part];
    const auto decoded = read_container<float>(message.payload.bytes, {.dimension = range.end - range.begin});
    MILLRACE_CHECK(decoded.has_value() || message.header.job != 1, update.part, update.step);
  }

  ByteSource& source_;
  std::unique_ptr<protocol::MembershipTable> table_;
  protocol::JobSpec spec_;
  protocol::JobLayout layout_;
  TimeNs now_ = kNsPerS;
  std::unique_ptr<server::ShardCore> core_;
  server::Actions actions_;
  std::vector<std::shared_ptr<server::Task>> tasks_;
  uint64_t map_hash_ = 0;
  std::map<std::tuple<uint64_t, uint32_t, uint64_t>, uint64_t> updates_;
};

}  // namespace
}  // namespace millrace::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::testing::ByteSource source(data, std::min<size_t>(size, 4'096));
  millrace::testing::ShardFuzz(source).run();
  return 0;
}
