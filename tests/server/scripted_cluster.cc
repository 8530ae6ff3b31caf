#include "tests/server/scripted_cluster.h"

#include <algorithm>
#include <string_view>

namespace millrace::server {

ScriptedCluster::ScriptedCluster(protocol::JobSpec spec, uint32_t shard_count, Limits limits, JobStore::Saves saves,
                                 std::string datagrams)
    : datagrams_of_shard_0(std::move(datagrams)), spec_(std::move(spec)), limits_(limits), saves_(saves) {
  layout_ = protocol::plan_layout(spec_, shard_count);
  tables_.resize(shard_count);
  shards_.resize(shard_count);
  for (uint32_t shard = 0; shard < shard_count; ++shard) start_shard(shard, shard_count);
  for (uint32_t shard = 0; shard < shard_count; ++shard) tick(shard);
}

ScriptedCluster::~ScriptedCluster() = default;

protocol::JobSpec ScriptedCluster::small_job(uint32_t workers, uint64_t dimension) {
  protocol::JobSpec spec;
  spec.name = "job";
  spec.workers = workers;
  spec.tensors.push_back({.name = "w", .dimension = dimension});
  spec.codec_up.index = IndexCodecId::kRaw;
  spec.codec_down.index = IndexCodecId::kRaw;
  spec.parts_per_shard = 1;
  return spec;
}

void ScriptedCluster::start_shard(uint32_t shard, uint32_t shard_count, const std::string& host) {
  shards_[shard].reset();  // before the table that it uses
  std::erase_if(connected_, [shard](const auto& entry) { return entry.first.first == shard; });
  tables_[shard] = std::make_unique<millrace::testing::FailingTable>(millrace::testing::open_memory_table(table_state));
  const std::string datagrams = shard == 0 ? datagrams_of_shard_0 : "";
  const Result<uint64_t> incarnation =
      tables_[shard]->start_shard(shard, shard_count, "tcp://" + host + ":" + std::to_string(shard), datagrams);
  ASSERT_TRUE(incarnation.has_value()) << incarnation.error().message;
  ShardConfig config{shard, shard_count, *incarnation, "test", limits_, saves_};
  config.room_for_worker = [this](TimeNs) { return room; };
  config.is_closed = [this](const protocol::PeerId& peer) { return std::ranges::find(closed, peer) != closed.end(); };
  config.queued_bytes = [this](const protocol::PeerId&) { return queued_bytes; };
  config.rights.job_memory_bytes_max = [this](const std::string&, const std::string&) { return job_quota; };
  config.rights.judge_opening = [this](const std::string&, const std::string&, uint32_t open) -> Status {
    if (open < jobs_quota) return {};
    return fail(ErrorCode::kLimitExceeded, "its quota is " + std::to_string(jobs_quota));
  };
  config.rights.judge = [this](const protocol::PeerId&, const JoinRequest& request) {
    return request.creates ? may_create : Status();
  };
  if (!datagrams.empty()) config.datagrams.judge = [this](const auto&, const auto&) { return judged; };
  shards_[shard] = std::make_unique<ShardCore>(std::move(config), *tables_[shard], now);
  lives_[shard] = *incarnation;
}

protocol::Header ScriptedCluster::header(uint32_t worker, uint32_t shard) {
  protocol::Header header;
  header.worker = worker;
  header.shard = shard;
  header.shard_incarnation = lives_[shard];
  header.job = views_[{worker, shard}].job;
  header.epoch = views_[{worker, shard}].epoch;
  header.incarnation = worker_lives_[{worker, shard}];
  return header;
}

protocol::Hello ScriptedCluster::hello(uint32_t worker) const {
  protocol::Hello hello;
  hello.nonce = 1000 + worker;
  hello.spec = spec_;
  hello.shard_count = static_cast<uint32_t>(shards_.size());
  hello.layout_hash = protocol::layout_hash(layout_);
  return hello;
}

protocol::Body ScriptedCluster::say_hello(uint32_t worker, protocol::Hello hello, uint32_t shard) {
  take(worker, shard);
  protocol::Header head;
  head.worker = worker;
  head.shard = shard;
  send(peer(worker), shard, {head, std::move(hello), {}});
  const std::vector<protocol::Message> answers = take(worker, shard);
  for (auto answer = answers.begin(); answer != answers.end(); ++answer) {
    if (std::holds_alternative<protocol::Welcome>(answer->body) ||
        std::holds_alternative<protocol::Refuse>(answer->body)) {
      inbox_[{worker, shard}].assign(answer + 1, answers.end());
      return answer->body;
    }
  }
  ADD_FAILURE() << "no answer to Hello";
  return protocol::Refuse{};
}

void ScriptedCluster::join_all() {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    for (uint32_t worker = 0; worker < spec_.workers; ++worker) {
      ASSERT_TRUE(std::holds_alternative<protocol::Welcome>(join(worker, shard))) << worker;
    }
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) tick(shard);
  for (uint32_t worker = 0; worker < spec_.workers; ++worker) {
    for (uint32_t shard = 0; shard < shards_.size(); ++shard) take(worker, shard);
  }
}

SharedBytes ScriptedCluster::payload(const std::vector<float>& dense) const {
  Stream stream;
  stream.dimension = dense.size();
  stream.dense = true;
  stream.values.assign(dense.begin(), dense.end());
  const Stream sparse = to_sparse(stream.view());
  auto coded = encode_container(sparse.view(), sparse.view(), EncodeOptions{spec_.codec_up, {}, 0});
  EXPECT_TRUE(coded.has_value());
  return SharedBytes::from(std::move(coded->bytes));
}

protocol::Message ScriptedCluster::contribution(uint32_t worker, uint32_t part, uint64_t step, const SharedBytes& bytes,
                                                uint32_t shard) {
  protocol::Contribution body;
  body.part = part;
  body.step = step;
  body.payload_hash = container_identity(bytes.bytes).value_or(0);
  return {header(worker, shard), body, bytes};
}

void ScriptedCluster::push(uint32_t worker, uint64_t step, const std::vector<float>& gradient) {
  for (const protocol::PartLayout& part : layout_.parts) {
    const std::vector<float> range(gradient.begin() + static_cast<ptrdiff_t>(part.begin),
                                   gradient.begin() + static_cast<ptrdiff_t>(part.end));
    protocol::Message message = contribution(worker, part.part, step, payload(range), part.shard);
    std::get<protocol::Contribution>(message.body).again = !pushed_.emplace(worker, part.part, step).second;
    send(peer(worker), part.shard, std::move(message));
  }
}

void ScriptedCluster::ack(uint32_t worker, uint64_t n) {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    protocol::Ack body;
    for (const protocol::PartLayout& part : layout_.parts) {
      if (part.shard == shard) body.entries.push_back({part.part, n});
    }
    send(peer(worker), shard, {header(worker, shard), body, {}});
  }
}

void ScriptedCluster::send(const protocol::PeerId& from, uint32_t shard, protocol::Message message) {
  Actions actions;
  shards_[shard]->on_message(from, std::move(message), now, actions);
  carry_out(shard, actions);
}

void ScriptedCluster::tick(uint32_t shard) {
  Actions actions;
  shards_[shard]->on_tick(now, actions);
  carry_out(shard, actions);
}

void ScriptedCluster::pass(int64_t milliseconds) {
  const TimeNs until = now + milliseconds * kNsPerMs;
  while (now < until) {
    now = std::min(until, now + 10 * kNsPerMs);
    for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
      if (shards_[shard] && now >= shards_[shard]->next_deadline()) tick(shard);
    }
  }
}

void ScriptedCluster::shut_down(uint32_t shard) {
  Actions actions;
  shards_[shard]->begin_shutdown(now, actions);
  carry_out(shard, actions);
}

void ScriptedCluster::run_held_tasks() {
  while (!held_.empty()) run_one_held_task();
}

void ScriptedCluster::run_held_task(size_t at) {
  auto [shard, task] = held_[at];
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(at));
  task->run();
  Actions actions;
  shards_[shard]->on_task_done(task, now, actions);
  carry_out(shard, actions);
}

std::shared_ptr<Task> ScriptedCluster::take_held_task() {
  const std::shared_ptr<Task> task = held_.front().second;
  held_.pop_front();
  return task;
}

void ScriptedCluster::run_held_tasks_until(Task::Kind kind) {
  while (!held_.empty() && held_.front().second->kind() != kind) run_one_held_task();
}

std::vector<protocol::Message> ScriptedCluster::take(uint32_t worker, uint32_t shard) {
  return std::exchange(inbox_[{worker, shard}], {});
}

ScriptedCluster::Gathered ScriptedCluster::gather(uint32_t worker, uint64_t step) {
  Gathered gathered;
  gathered.dense.resize(layout_.buckets[0].dimension);
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    for (const protocol::Message& message : take(worker, shard)) {
      const auto* update = std::get_if<protocol::Update>(&message.body);
      if (!update || update->step != step) continue;
      const protocol::PartLayout& part = layout_.parts[update->part];
      auto stream = read_container(message.payload.bytes, {.dimension = part.end - part.begin});
      EXPECT_TRUE(stream.has_value());
      const Stream sparse = to_sparse(stream->view());
      for (size_t at = 0; at < sparse.indices.size(); ++at) {
        gathered.dense[part.begin + sparse.indices[at]] = sparse.values[at];
      }
      gathered.entries += sparse.count();
      ++gathered.parts;
    }
  }
  return gathered;
}

double ScriptedCluster::counted(Metric metric, std::string_view label) const {
  const auto at = counters_.find({metric, std::string(label)});
  return at == counters_.end() ? 0 : at->second;
}

double ScriptedCluster::counted_in_all(Metric metric) const {
  double sum = 0;
  for (const auto& [counter, value] : counters_) sum += counter.first == metric ? value : 0;
  return sum;
}

std::string ScriptedCluster::connected_to(uint32_t from, uint32_t to) const {
  const auto at = connected_.find({from, to});
  return at == connected_.end() ? "" : at->second;
}

size_t ScriptedCluster::said(std::string_view words) const {
  return static_cast<size_t>(
      std::ranges::count_if(log_, [words](const std::string& line) { return line.contains(words); }));
}

void ScriptedCluster::carry_out(uint32_t shard, Actions& actions) {
  for (const MetricEvent& event : actions.metrics) {
    counters_[{event.metric, std::string(event.label)}] += event.value;
  }
  for (DatagramChange& change : actions.datagrams) datagram_changes.push_back(std::move(change));
  for (LogLine& line : actions.log) log_.push_back(std::move(line.text));
  for (AuditEvent& event : actions.audit) audited.push_back(std::move(event));
  for (const ConnectShard& connect : actions.connects) connected_[{shard, connect.shard}] = connect.address;
  for (SendToPeer& send : actions.to_peers) deliver(shard, std::move(send));
  for (SendToShard& send : actions.to_shards) {
    if (mute.contains(shard) || !shards_[send.shard] || !connected_.contains({shard, send.shard})) continue;
    if (on_the_way) on_the_way(send.message);
    Actions next;
    shards_[send.shard]->on_message({"shard-" + std::to_string(shard)}, std::move(send.message), now, next);
    carry_out(send.shard, next);
  }
  for (std::shared_ptr<Task>& task : actions.tasks) {
    held_.emplace_back(shard, std::move(task));
  }
  for (StoreRequest& request : actions.store_requests) disk.asked.emplace_back(shard, std::move(request));
  if (!disk.holds) serve_disk();
  if (!hold_tasks && !running_) {
    running_ = true;
    run_held_tasks();
    running_ = false;
  }
}

void ScriptedCluster::serve_disk() {
  while (!disk.asked.empty()) {
    const auto [shard, request] = std::move(disk.asked.front());
    disk.asked.pop_front();
    Actions next;
    if (request.what == StoreRequest::What::kLoad) {
      shards_[shard]->on_store_loaded(request.job, disk.load(shard, request.name), now, next);
    } else {
      shards_[shard]->on_store_written(request.job, disk.write(shard, request), now, next);
    }
    carry_out(shard, next);
  }
}

Status ScriptedCluster::FakeDisk::write(uint32_t shard, const StoreRequest& request) {
  if (request.what == StoreRequest::What::kGiveUp) {
    unfinished.erase({shard, request.name});
    return {};
  }
  if (fails) return fail(ErrorCode::kIo, "no space left on this disk");
  ByteBuffer& file = unfinished[{shard, request.name}];
  if (request.what == StoreRequest::What::kBegin) file.clear();
  file.insert(file.end(), request.bytes.bytes.begin(), request.bytes.bytes.end());
  if (request.what == StoreRequest::What::kEnd) saves[{shard, request.name}] = file;
  return {};
}

Result<StoreFile> ScriptedCluster::FakeDisk::load(uint32_t shard, const std::string& name) const {
  const auto at = saves.find({shard, name});
  if (at == saves.end()) return fail(ErrorCode::kIo, "no such save");
  ByteSpan left = at->second;
  return read_store_file(left.size(), [&left](std::span<uint8_t> out) -> Status {
    std::ranges::copy(left.first(out.size()), out.begin());
    left = left.subspan(out.size());
    return {};
  });
}

void ScriptedCluster::deliver(uint32_t shard, SendToPeer send) {
  constexpr std::string_view kPrefix = "worker-";
  constexpr std::string_view kShardPrefix = "shard-";
  if (send.to.bytes.starts_with(kShardPrefix)) {
    const uint32_t to = static_cast<uint32_t>(std::stoul(send.to.bytes.substr(kShardPrefix.size())));
    Actions next;
    shards_[to]->on_shard_reply(shard, send.message, now, next);
    return carry_out(to, next);
  }
  if (!send.to.bytes.starts_with(kPrefix)) return;
  const uint32_t worker = static_cast<uint32_t>(std::stoul(send.to.bytes.substr(kPrefix.size())));
  const protocol::Membership* membership = nullptr;
  if (const auto* welcome = std::get_if<protocol::Welcome>(&send.message.body)) membership = &welcome->membership;
  if (const auto* change = std::get_if<protocol::MembershipChange>(&send.message.body))
    membership = &change->membership;
  if (membership) {
    views_[{worker, shard}] = *membership;
    worker_lives_[{worker, shard}] = send.message.header.incarnation;
  }
  inbox_[{worker, shard}].push_back(std::move(send.message));
}

}  // namespace millrace::server
