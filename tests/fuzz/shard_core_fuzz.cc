// Feeds arbitrary messages, well formed and not, from any peer and in any order, to a shard's core. Now and then
// another process replaces it: then the state for its recovery may be true, or arbitrary. The core never aborts; its
// decisions stay decided. Its messages about a step under one log branch agree; the weights that it hands on are those
// that it was given. A job may have a store: then weights are pulled and placed. Its disk fails, is slow, and may hold
// anything.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/container/container.h"
#include "protocol/job/layout.h"
#include "protocol/messages/frame.h"
#include "protocol/messages/log_branch.h"
#include "server/shard/shard_core.h"
#include "tests/fuzz/acks_said.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/drawn_job.h"
#include "tests/fuzz/fuzz_disk.h"
#include "tests/support/memory_table.h"

namespace millrace::testing {
namespace {

using protocol::Goodbye;

class ShardFuzz {
 public:
  explicit ShardFuzz(ByteSource& source)
      : source_(source), table_(millrace::testing::open_memory_table(millrace::testing::make_memory_table_state())) {
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
    spec_.dead_after = std::chrono::milliseconds(1'000);
    spec_.heartbeat = std::chrono::milliseconds(100);
    if (source_.one_in(2)) {
      spec_.reselect.reselect = protocol::Reselect::kTopK;
      spec_.reselect.k = 3;
      spec_.reselect.threshold_period = 1 + source_.below(2);
    }
    if (source_.one_in(2)) draw_store(source_, spec_, saves_);
    if (source_.one_in(3)) {
      spec_.mode = protocol::Mode::kAsynchronous;
      spec_.reselect = {};
    }
    if (!spec_.has_store() && source_.one_in(4)) spec_.apply_after_acks = spec_.workers_min = 2;
    if (source_.one_in(4)) datagrams_ = draw_switch(source_, spec_);
    MILLRACE_CHECK(protocol::validate(spec_).has_value());  // a refused job would let nothing through
    layout_ = protocol::plan_layout(spec_, 2);
    if (!source_.one_in(3)) MILLRACE_CHECK(table_->start_shard(1, 2, "tcp://fuzz:2").has_value());
    if (source_.one_in(4)) limits_.job_memory_bytes_max = 20'000;
    start();
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
    switch (source_.below(24)) {
      case 9: return round();
      case 20: return pull();
      case 21: return place();
      case 22: return serve_disk();
      case 23: return source_.one_in(4) ? core_->save_stores(now_, actions_) : serve_disk();
      case 0: return hello();
      case 1: return pass_on(peer(), raw());
      case 2: return core_->on_malformed({ErrorCode::kMalformed, "fuzz"}, now_, actions_);
      case 3: return finish_task();
      case 4: return tick();
      case 5: return deliver(protocol::Ack{{{part(), source_.number(4)}, {part(), source_.number(4)}}});
      case 6:
        return deliver(protocol::Heartbeat{.sequence = 1,
                                           .steps_applied = source_.number(4),
                                           .waited_for = {},
                                           .decided = {},
                                           .digests = {{part(), source_.number(4), source_.number(2)}},
                                           .switch_state = static_cast<protocol::Heartbeat::Switch>(source_.below(3))});
      case 7: return shard_message();
      case 8: return goodbye();
      case 10: return deliver(state(source_.below(2)));
      case 11: return answer();
      case 12: return deliver(protocol::Synced{});
      case 13: return answer();
      case 14: return greet();
      case 15: return unasked();
      case 16: return recover();
      case 17: return join();
      case 18: return source_.below(4) == 3 ? start() : join();
      default: return contribution();
    }
  }

  /// The shard's process, or another one in its place.
  void start() {
    core_.reset();
    tasks_.clear();
    asked_.clear();
    // The disk carried out the requests of the earlier process, up to some piece of them.
    for (uint32_t most = source_.below(8); most > 0 && !disk_.idle(); --most) disk_.carry_out();
    disk_.lose_process();
    const auto start = table_->start_shard(0, 2, "tcp://fuzz:" + std::to_string(1 + source_.below(2)), datagrams_);
    MILLRACE_CHECK(start.has_value());
    incarnation_ = *start;
    server::ShardConfig config;
    config.shard = 0;
    config.shard_count = 2;
    config.incarnation = incarnation_;
    config.limits = limits_;
    config.saves = saves_;
    if (!datagrams_.empty()) config.datagrams.judge = [](const auto&, const auto&) { return Status(); };
    core_ = std::make_unique<server::ShardCore>(config, *table_, now_);
  }

  /// Returns true seldom, so that messages are true but for one field at a time; and never once the bytes have run out.
  bool lies() { return source_.below(16) == 15; }

  /// Returns the state of a worker that has applied all updates that were seen, or fewer.
  protocol::State state(uint32_t worker) {
    protocol::State state;
    state.synced = synced_.contains(worker) != lies();
    state.stranded = source_.below(4) == 3;
    for (const protocol::PartLayout& planned : layout_.parts) {
      const Held& held = held_[planned.part];
      state.parts.push_back({planned.part, held.n, held.n == 0 ? 0 : held.decided_in, held.branch, 0});
    }
    protocol::State::Part& one = state.parts[source_.below(static_cast<uint32_t>(state.parts.size()))];
    if (source_.below(4) == 3) {
      one.n = std::min<uint64_t>(one.n, source_.number(4));  // behind
      one.decided_in = one.n == 0 ? 0 : held_[one.part].decided_in;
    }
    if (source_.below(4) == 3) one.retained_from = std::min<uint64_t>(one.n, source_.number(4));
    if (lies()) one.n = source_.number(4);
    if (lies()) one.decided_in = source_.number(6);
    if (lies()) one.branch = source_.number(4);
    if (lies()) state.parts.pop_back();
    return state;
  }

  /// Replaces the shard's process; all members answer.
  void recover() {
    start();
    greet();
    for (uint32_t most = source_.below(60); most > 0 && !asked_.empty(); --most) {
      answer();
      carry_out();
    }
  }
  /// Members that join report their positions, and take the assigned state.
  void join() {
    for (const uint32_t worker : {0u, 1u}) {
      say(peer_of(worker), state(worker));
      carry_out();
    }
    for (uint32_t most = source_.below(20); most > 0 && !asked_.empty(); --most) {
      answer();
      carry_out();
    }
    for (const uint32_t worker : {0u, 1u}) {
      if (source_.below(4) != 3) say(peer_of(worker), protocol::Synced{});
      carry_out();
    }
  }
  static protocol::PeerId peer_of(uint32_t worker) { return {std::string(1, static_cast<char>('a' + worker))}; }
  static uint32_t worker_at(const protocol::PeerId& from) { return static_cast<uint32_t>(from.bytes[0] - 'a') % 2; }

  /// The oldest question that has not been answered; most answers are right.
  void answer() {
    if (asked_.empty()) return deliver(state(source_.below(2)));
    const auto [to, question] = asked_.front();
    asked_.erase(asked_.begin());
    if (const auto* fetch = std::get_if<protocol::Fetch>(&question)) {
      const Held& held = held_[fetch->part];
      for (const auto& [step, message] : held.updates) {
        if (step < fetch->first_step || lies()) continue;
        say(to, message.body, lies() ? SharedBytes::from(source_.bytes(80)) : message.payload);
      }
      protocol::Fetched fetched{fetch->part, held.n, held.decided_in, held.summary};
      if (lies()) fetched.n = source_.number(4);
      if (lies()) fetched.summary.epochs.clear();
      say(to, fetched);
    } else if (const auto* request = std::get_if<protocol::SnapshotRequest>(&question)) {
      for (const uint32_t part : request->parts) give_weights(to, *request, part);
    } else {
      say(to, state(static_cast<uint32_t>(to.bytes[0] - 'a') % 2));
    }
  }

  void give_weights(const protocol::PeerId& to, const protocol::SnapshotRequest& request, uint32_t part) {
    const Held& held = held_[part];
    const uint64_t dimension = layout_.parts[part].end - layout_.parts[part].begin;
    const uint64_t run = source_.below(2) == 0 ? dimension : 1 + dimension / 3;
    for (uint64_t offset = 0; offset < dimension; offset += run) {
      const uint64_t count = std::min(run, dimension - offset);
      const SharedBytes payload = SharedBytes::from(ByteBuffer(count * sizeof(float), source_.byte()));
      protocol::Snapshot body{part, request.for_worker, request.for_incarnation, held.n, held.decided_in, offset,
                              0,    held.summary};
      body.payload_hash = lies() ? 1 : hash64(payload.bytes);
      if (lies()) body.n = source_.number(4);
      if (lies()) body.offset = source_.number(60);
      say(to, body, payload);
      carry_out();
    }
  }

  void pull() {
    protocol::Pull body{.id = source_.number(6), .part = part(), .at_least = source_.number(4)};
    if (source_.one_in(2)) {
      const ByteBuffer drawn = source_.bytes(12);
      std::vector<uint32_t> indices(drawn.begin(), drawn.end());
      if (!lies()) std::ranges::sort(indices);
      if (!lies()) indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
      body.indices = static_cast<uint32_t>(indices.size());
      if (body.indices != 0) body.run = static_cast<uint32_t>(source_.below(5));
      for (uint32_t& index : indices) index *= std::max(body.run, 1U);
      const auto* bytes = reinterpret_cast<const uint8_t*>(indices.data());
      return deliver(body, SharedBytes::from(ByteBuffer(bytes, bytes + indices.size() * sizeof(uint32_t))));
    }
    body.offset = source_.number(50);
    body.count = source_.number(5'000);
    deliver(body);
  }

  /// First weights of a part, all of them in a few runs, or one run of anything.
  void place() {
    const uint32_t number = part();
    const bool whole = number < layout_.parts.size() && !lies();
    const uint64_t dimension = whole ? layout_.parts[number].end - layout_.parts[number].begin : source_.below(60);
    const uint64_t run = source_.one_in(2) ? 1 + dimension / 3 : std::max<uint64_t>(dimension, 1);
    for (uint64_t offset = lies() ? source_.number(60) : 0; offset < dimension; offset += run) {
      std::vector<float> values(std::min(run, dimension - offset), static_cast<float>(source_.below(4)));
      if (lies()) values[0] = INFINITY;
      const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
      const SharedBytes payload = SharedBytes::from(ByteBuffer(bytes, bytes + values.size() * sizeof(float)));
      if (lies()) return deliver(protocol::Place{number, offset, 1}, payload);
      say(peer_of(0), protocol::Place{number, offset, hash64(payload.bytes)}, payload);
      carry_out();
    }
  }

  void serve_disk() {
    if (disk_.idle()) return;
    const bool fails = lies();
    const server::StoreRequest request = fails ? disk_.pass_over() : disk_.carry_out();
    const Error why{ErrorCode::kIo, "fuzz"};
    if (request.what != server::StoreRequest::What::kLoad) {
      return core_->on_store_written(request.job, fails ? Status(std::unexpected(why)) : Status(), now_, actions_);
    }
    Result<server::StoreFile> file = fails ? std::unexpected(why) : disk_.load(request.name);
    if (file && lies()) forge(*file);
    core_->on_store_loaded(request.job, std::move(file), now_, actions_);
  }

  /// A file that is whole, and of another time or job.
  void forge(server::StoreFile& file) {
    if (lies()) file.header.job = source_.number(3);
    if (lies()) file.header.spec.tensors[0].dimension = 7;
    if (file.parts.empty()) return;
    server::StorePart& one = file.parts[source_.below(static_cast<uint32_t>(file.parts.size()))];
    one.position.n = source_.number(6);
    if (lies()) one.position.summary.log_digest = source_.number(4);
    if (lies()) one.part = part();
    if (lies()) one.arrays.weights.resize(source_.below(60));
    if (lies()) file.parts.pop_back();
  }

  /// Delivers an answer without a request, or one of another worker.
  void unasked() {
    const uint32_t number = part();
    Held& held = held_[std::min<uint32_t>(number, static_cast<uint32_t>(layout_.parts.size()) - 1)];
    switch (source_.below(3)) {
      case 0: return deliver(protocol::Fetched{number, source_.number(4), source_.number(6), held.summary});
      case 1: {
        if (held.updates.empty()) return;
        const protocol::Message& message = held.updates.begin()->second;
        return deliver(message.body, message.payload);
      }
      default: {
        const SharedBytes payload = SharedBytes::from(source_.bytes(40));
        deliver(
            protocol::Snapshot{number, static_cast<uint32_t>(source_.number(3)), source_.number(3), source_.number(4),
                               source_.number(6), source_.number(40), hash64(payload.bytes), held.summary},
            payload);
      }
    }
  }

  void pass_on(const protocol::PeerId& from, protocol::Message&& message) {
    acks_.heard(message);
    core_->on_message(from, std::move(message), now_, actions_);
  }
  void say(const protocol::PeerId& to, protocol::Body body, SharedBytes payload = {}) {
    const uint32_t worker = static_cast<uint32_t>(to.bytes[0] - 'a') % 2;
    pass_on(to, {header(worker), std::move(body), std::move(payload)});
    if (actions_.to_peers.size() > 64) carry_out();
  }
  protocol::Header header(uint32_t worker) {
    return {job_, epoch_, worker, lives_[worker], 0, incarnation_};  // shard 0
  }

  protocol::PeerId peer() { return {std::string(1, static_cast<char>('a' + source_.below(4)))}; }
  uint32_t part() { return static_cast<uint32_t>(source_.number(static_cast<uint32_t>(layout_.parts.size()) + 1)); }

  /// Delivers `body`, usually as the well-behaved worker behind that peer would send it.
  void deliver(protocol::Body body, SharedBytes payload = {}) {
    const protocol::PeerId from = peer();
    const uint32_t worker = source_.one_in(8) ? static_cast<uint32_t>(source_.number(3)) : worker_at(from);
    protocol::Message message;
    message.header = header(worker);
    if (source_.one_in(16)) message.header.job = source_.number(3);
    if (source_.one_in(8)) message.header.epoch = source_.number(6);
    if (source_.one_in(8)) message.header.incarnation = source_.number(3);
    if (source_.one_in(32)) message.header.shard = 1;
    if (source_.one_in(32)) message.header.shard_incarnation = source_.number(3);
    message.body = std::move(body);
    message.payload = std::move(payload);
    pass_on(from, std::move(message));
  }

  /// Lets both workers join and the other shard identify itself: most of the later messages reach a running job.
  void greet() {
    for (uint32_t worker = 0; worker < 2; ++worker) {
      protocol::Message message;
      message.header.worker = worker;
      message.body = hello_of(worker);
      pass_on(peer_of(worker), std::move(message));
      carry_out();
    }
  }

  /// What two well-behaved workers would send into the next step of every part, each part's in one go.
  void round() {
    for (const protocol::PartLayout& planned : layout_.parts) {
      if (planned.shard != 0) continue;
      const uint64_t step = held_[planned.part].n;
      for (uint32_t worker = 0; worker < 2; ++worker) {
        Stream stream = Stream::empty(planned.end - planned.begin);
        stream.indices.push_back(source_.byte() % static_cast<uint32_t>(stream.dimension));
        stream.values.push_back(static_cast<float>(1 + source_.below(4)));
        protocol::Message message;
        message.header = header(worker);
        message.payload = SharedBytes::from(std::move(encode_container(stream.view(), stream.view(), {})->bytes));
        const bool asynchronous = spec_.mode == protocol::Mode::kAsynchronous;
        uint64_t& sent = sent_[{planned.part, worker, message.header.incarnation}];
        message.body = protocol::Contribution{.part = planned.part,
                                              .step = asynchronous ? sent++ : step,
                                              .payload_hash = container_checksum(message.payload.bytes)};
        pass_on(peer_of(worker), std::move(message));
        carry_out();
      }
    }
    for (uint32_t most = source_.below(40); most > 0 && !tasks_.empty(); --most) {
      finish_task();
      carry_out();
    }
  }

  protocol::Hello hello_of(uint32_t worker) {
    protocol::Hello hello;
    hello.nonce = 100 + worker;
    hello.spec = spec_;
    hello.shard_count = 2;
    hello.layout_hash = protocol::layout_hash(layout_);
    hello.has_weights = !lies();
    hello.capabilities = lies() ? 0 : protocol::kTakesMerged;
    hello.returns = source_.below(2) == 0;
    return hello;
  }

  void hello() {
    const protocol::PeerId from = peer();
    protocol::Hello hello = hello_of(worker_at(from));
    if (source_.one_in(8)) hello.nonce = source_.number(4);
    if (source_.one_in(16)) hello.spec.tensors[0].dimension = source_.number(50);
    if (source_.one_in(16)) hello.spec.name = "other";
    if (source_.one_in(16)) hello.shard_count = static_cast<uint32_t>(source_.number(4));
    if (source_.one_in(16)) hello.layout_hash = 1;
    protocol::Message message;
    message.header.worker = source_.one_in(16) ? static_cast<uint32_t>(source_.number(4)) : worker_at(from);
    message.header.job = source_.one_in(8) ? source_.number(3) : 0;
    message.body = std::move(hello);
    pass_on(from, std::move(message));
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
      Stream stream = Stream::empty(dimension);
      stream.indices.push_back(source_.byte() % static_cast<uint32_t>(dimension));
      stream.values.push_back(static_cast<float>(1 + source_.below(4)));
      payload = SharedBytes::from(std::move(encode_container(stream.view(), stream.view(), {})->bytes));
    }
    body.payload_hash = source_.one_in(16) ? 1 : container_checksum(payload.bytes);
    deliver(body, std::move(payload));
  }

  protocol::Message raw() {
    const ByteBuffer envelope = source_.bytes(255);
    auto message = protocol::decode_message(envelope, SharedBytes::from(source_.bytes(60)), {});
    return message ? std::move(*message) : protocol::Message{};
  }

  void goodbye() {  // seldom: a job that is over tells nothing more
    std::vector<protocol::LogReach> reach(source_.below(4), {source_.below(8), source_.below(8)});
    if (source_.one_in(4)) deliver(Goodbye{static_cast<Goodbye::Reason>(1 + source_.below(3)), "", std::move(reach)});
  }

  void shard_message() {
    protocol::Message message;
    message.header = {.job = job_, .epoch = 1, .shard = source_.one_in(8) ? 0u : 1u, .shard_incarnation = 1};
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
    pass_on({"s"}, std::move(message));
  }

  void tick() {
    now_ += static_cast<TimeNs>(source_.byte()) * (source_.one_in(16) ? 100 : 1) * kNsPerMs;
    if (source_.one_in(64)) core_->begin_shutdown(now_, actions_);
    if (source_.one_in(128)) (void)table_->start_shard(0, 2, "tcp://fuzz:3");  // another process: this one stops
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
      acks_.check(spec_, send.message);
      MILLRACE_CHECK(!protocol::encode_envelope(send.message).empty());
      note(send);
    }
    // The fuzzer learns from the messages to the other shard to speak for it.
    for (const auto& send : actions_.to_shards) {
      if (const auto* hello = std::get_if<protocol::ShardHello>(&send.message.body)) map_hash_ = hello->shard_map_hash;
    }
    tasks_.insert(tasks_.end(), actions_.tasks.begin(), actions_.tasks.end());
    MILLRACE_CHECK(actions_.store_requests.empty() || saves_.possible);
    disk_.ask(actions_.store_requests);
    actions_.clear();
  }

  /// Records the state that a well-behaved worker keeps of a message to it.
  void note(const server::SendToPeer& send) {
    const protocol::Body& body = send.message.body;
    const protocol::Membership* membership = nullptr;
    if (const auto* welcome = std::get_if<protocol::Welcome>(&body)) membership = &welcome->membership;
    if (const auto* change = std::get_if<protocol::MembershipChange>(&body)) membership = &change->membership;
    if (membership) {
      if (membership->job != job_) held_.clear();
      job_ = membership->job;
      epoch_ = membership->epoch;
      synced_.clear();
      for (const protocol::Member& member : membership->members) {
        lives_[member.worker] = member.incarnation;
        if (member.state == protocol::MemberState::kSynced) synced_.insert(member.worker);
      }
      MILLRACE_CHECK(protocol::activations_make_sense(*membership), membership->epoch);
    }
    const bool question = std::holds_alternative<protocol::Collect>(body) ||
                          std::holds_alternative<protocol::Fetch>(body) ||
                          std::holds_alternative<protocol::SnapshotRequest>(body);
    if (question && asked_.size() < 64) asked_.emplace_back(send.to, body);
    const bool place_alone = spec_.has_store() && send.message.payload.bytes.empty();  // the shards hold the weights
    if (const auto* snapshot = std::get_if<protocol::Snapshot>(&body); snapshot && !place_alone) {
      MILLRACE_CHECK(snapshot->part < layout_.parts.size() && layout_.parts[snapshot->part].shard == 0, snapshot->part);
      MILLRACE_CHECK(hash64(send.message.payload.bytes) == snapshot->payload_hash, snapshot->part);
      const uint64_t dimension = layout_.parts[snapshot->part].end - layout_.parts[snapshot->part].begin;
      const uint64_t count = send.message.payload.bytes.size() / sizeof(float);
      MILLRACE_CHECK(count > 0 && snapshot->offset + count <= dimension, snapshot->offset, count, dimension);
    }
    if (const auto* update = std::get_if<protocol::Update>(&body)) hold(send.message, *update);
    if (const auto* pulled = std::get_if<protocol::Pulled>(&body)) {
      MILLRACE_CHECK(send.message.payload.bytes.size() == pulled->values * sizeof(float), pulled->values);
      MILLRACE_CHECK(pulled->values == 0 || hash64(send.message.payload.bytes) == pulled->payload_hash, pulled->part);
      MILLRACE_CHECK(pulled->code.has_value() != pulled->sentence.empty(), pulled->sentence);
    }
  }

  void hold(const protocol::Message& message, const protocol::Update& update) {
    Held& held = held_[update.part];
    if (update.step > held.n || message.header.job != job_) return;
    held.n = update.step + 1;  // a step that was void is another one now
    held.updates.erase(held.updates.lower_bound(update.step), held.updates.end());
    held.updates[update.step] = message;
    held.decided_in = update.decided_in;
    held.branch = update.branch;
    held.summary = update.summary;
  }

  void check_update(const protocol::Message& message, const protocol::Update& update) {
    MILLRACE_CHECK(update.part < layout_.parts.size(), update.part);
    MILLRACE_CHECK(update.contributors.empty() != update.merged.empty(), update.part, update.step);
    if (!update.merged.empty()) return;  // several steps of mode asynchronous
    for (size_t i = 1; i < update.contributors.size(); ++i)
      MILLRACE_CHECK(update.contributors[i - 1].worker < update.contributors[i].worker, update.part, update.step);
    const auto [known, fresh] = updates_.try_emplace({message.header.job, update.part, update.step, update.branch},
                                                     hash64(message.payload.bytes));
    MILLRACE_CHECK(known->second == hash64(message.payload.bytes), update.part, update.step);
    const protocol::PartLayout& range = layout_.parts[update.part];
    const auto decoded = read_container(message.payload.bytes, {.dimension = range.end - range.begin});
    MILLRACE_CHECK(decoded.has_value(), update.part, update.step);
  }

  /// Of one part, by a worker that applies all it can.
  struct Held {
    uint64_t n = 0;
    uint64_t decided_in = 0;
    uint64_t branch = 0;
    protocol::Summary summary;
    std::map<uint64_t, protocol::Message> updates;
  };

  ByteSource& source_;
  std::unique_ptr<protocol::MembershipTable> table_;
  protocol::JobSpec spec_;
  protocol::JobLayout layout_;
  TimeNs now_ = kNsPerS;
  std::unique_ptr<server::ShardCore> core_;
  server::Actions actions_;
  std::vector<std::shared_ptr<server::Task>> tasks_;
  uint64_t map_hash_ = 0;
  std::map<std::tuple<uint64_t, uint32_t, uint64_t, uint64_t>, uint64_t> updates_;  ///< by job, part, step, branch
  server::Limits limits_;
  server::JobStore::Saves saves_;
  std::string datagrams_;  ///< of this shard, which takes over from switches; empty: it does not
  FuzzDisk disk_;
  AcksSaid acks_;
  uint64_t incarnation_ = 0;  ///< of the shard
  uint64_t job_ = 1;
  uint64_t epoch_ = 1;
  std::map<uint32_t, uint64_t> lives_;
  std::set<uint32_t> synced_;
  std::map<uint32_t, Held> held_;                                      ///< by part
  std::map<std::tuple<uint32_t, uint32_t, uint64_t>, uint64_t> sent_;  ///< asynchronous: by part, worker, incarnation
  std::vector<std::pair<protocol::PeerId, protocol::Body>> asked_;
};

}  // namespace
}  // namespace millrace::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::testing::ByteSource source(data, std::min<size_t>(size, 4'096));
  millrace::testing::ShardFuzz(source).run();
  return 0;
}
