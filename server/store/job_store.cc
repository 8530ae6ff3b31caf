#include "server/store/job_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

/// What happens to a part of the store, in its order. Saves are in job_store_save.cc.
namespace millrace::server {

uint64_t store_bytes(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint32_t shard) {
  if (!spec.has_store()) return 0;
  uint64_t values = 0;
  for (const protocol::PartLayout& part : layout.parts) {
    if (part.shard == shard) values += part.end - part.begin;
  }
  return values * sizeof(float) * (1 + optimizer_states(spec.store.optimizer.optimizer));
}

JobStore::JobStore(const Setup& setup)
    : combine_(setup.spec.combine),
      account_(&setup.account),
      charge_(setup.account, store_bytes(setup.spec, setup.layout, setup.shard)),
      queued_bytes_(std::make_unique<MemoryAccount>(&setup.account)) {
  MILLRACE_CHECK(setup.spec.has_store());
  header_.name = setup.spec.name;
  header_.shard = setup.shard;
  header_.shard_count = setup.shard_count;
  header_.layout_hash = protocol::layout_hash(setup.layout);
  header_.spec = setup.spec;
  for (const protocol::PartLayout& part : setup.layout.parts) {
    if (part.shard != setup.shard) continue;
    Part& own = parts_.emplace_back();
    own.part = part.part;
    own.dimension = part.end - part.begin;
    own.arrays = std::make_shared<StoreArrays>();
  }
  header_.parts = static_cast<uint32_t>(parts_.size());
}

void JobStore::open(uint64_t job, Saves saves, StartKind begin, TimeNs now, Actions& actions) {
  header_.job = job;
  saves_ = saves;
  next_save_ = now + saves.every;
  if (begin == StartKind::kSuccessor) return;  // drop() and recover() follow
  if (header_.spec.store.begin == protocol::StoreBegin::kSaved && !parts_.empty()) {
    loading_ = true;
    return request(StoreRequest::What::kLoad, {}, actions);
  }
  for (Part& part : parts_) ask(part, {.work = StoreTask::Fill{part.dimension}}, actions);
}

JobStore::Part* JobStore::local(uint32_t part) {
  const auto at = std::ranges::lower_bound(parts_, part, {}, &Part::part);
  return at == parts_.end() || at->part != part ? nullptr : &*at;
}

const JobStore::Part* JobStore::local(uint32_t part) const { return const_cast<JobStore*>(this)->local(part); }

void JobStore::count(Metric metric, std::string_view label, Actions& actions) const {
  actions.metrics.push_back({metric, header_.name, label, 1});
}

const StorePosition& JobStore::position(uint32_t part) const {
  const Part* own = local(part);
  MILLRACE_CHECK(own != nullptr, part);
  return own->position;
}

const StoreArrays& JobStore::arrays(uint32_t part) const {
  const Part* own = local(part);
  MILLRACE_CHECK(own != nullptr, part);
  return *own->arrays;
}

bool JobStore::takes(uint32_t part, uint64_t step) const {
  const Part* own = local(part);
  MILLRACE_CHECK(own != nullptr, part);
  return own->ready && !first_weights_unsaved_ && step < own->position.n + kStepsBehindMax;
}

void JobStore::decided(const protocol::Update& body, const SharedBytes& payload, Actions& actions) {
  Part* part = local(body.part);
  MILLRACE_CHECK(part != nullptr && part->handed == body.step, body.part, body.step);
  StoreTask::Apply apply{payload, protocol::denominator_of(combine_, body.contributors.size(), body.weight_sum)};
  MemoryCharge charge(*account_, payload.bytes.size());
  ask(*part, {.work = std::move(apply), .update = body, .charge = std::move(charge)}, actions);
  ++part->handed;
}

void JobStore::ask(Part& part, Operation operation, Actions& actions) {
  part.queue.push_back(std::move(operation));
  begin_next(part, actions);
}

void JobStore::begin_next(Part& part, Actions& actions) {
  if (part.running || part.queue.empty() || failure_) return;
  StoreTask::Input input{
      header_.job, part.part, next_token_, header_.spec.store.optimizer, part.arrays, part.queue.front().work};
  if (auto* copy = std::get_if<StoreTask::Copy>(&input.work)) {
    copy->position = part.position;
    copy->previous_hash = saving_->hash;
  }
  actions.tasks.push_back(std::make_shared<StoreTask>(std::move(input)));
  part.running = next_token_++;
}

void JobStore::on_task_done(const StoreTask& task, const Members* members, Actions& actions) {
  Part* part = local(task.input().part);
  MILLRACE_CHECK(part != nullptr, task.input().part);
  if (part->running != task.input().token || failure_) return;
  part->running.reset();
  const Operation operation = std::move(part->queue.front());
  part->queue.pop_front();
  done(*part, operation, task, members, actions);
  begin_next(*part, actions);
  advance_end(actions);
}

void JobStore::done(Part& part, const Operation& operation, const StoreTask& task, const Members* members,
                    Actions& actions) {
  if (std::holds_alternative<StoreTask::Place>(operation.work)) return placed(part, operation, task, members, actions);
  if (std::holds_alternative<StoreTask::Read>(operation.work)) {
    if (members) answer(part, operation, task, *members, actions);
    return;
  }
  if (!task.result()) {
    const Error& why = task.result().error();
    if (std::holds_alternative<StoreTask::Copy>(operation.work)) return save_failed(why, actions);
    failure_ = Error{why.code, fmt::format("the store of job '{}', part {}: {}", header_.name, part.part, why.message)};
    return;
  }
  if (std::holds_alternative<StoreTask::Copy>(operation.work)) return copied(part, *task.result(), actions);
  if (std::holds_alternative<StoreTask::Fill>(operation.work)) {
    part.filled = true;
    if (header_.spec.store.begin == protocol::StoreBegin::kZeros) become_ready(part, actions);
    if (part.notice == Part::Notice::kOwed && members) send_notice(part, *members, actions);
    return;
  }
  const protocol::Update& update = operation.update;
  part.position = {update.step + 1, update.summary};
  begin_waiting(part, actions);
}

void JobStore::become_ready(Part& part, Actions& actions) {
  part.ready = true;
  const bool by_worker = header_.spec.store.begin == protocol::StoreBegin::kWorker;
  const bool placed = by_worker && part.position.n == 0 && part.saved_n == UINT64_MAX;
  // Once the worker's Pull is answered, no worker places them again: a successor of this shard finds them in the save.
  if (placed) first_weights_unsaved_ = saves_.possible;
  begin_waiting(part, actions);
  if (!is_ready()) return;
  if (!first_weights_unsaved_) return save_when_ready(actions);
  save(actions);
}

void JobStore::begin_waiting(Part& part, Actions& actions) {
  if (!part.ready || first_weights_unsaved_) return;
  for (auto at = part.waiting.begin(); at != part.waiting.end();) {
    if (at->asked.at_least > part.position.n) {
      ++at;
      continue;
    }
    Operation operation = std::move(*at);
    at = part.waiting.erase(at);
    ask(part, std::move(operation), actions);
  }
}

void JobStore::refuse(const protocol::Member& to, const protocol::Pull& pull, Error why, const Members& members,
                      Actions& actions) const {
  count(Metric::kPulls, "refused", actions);
  protocol::Pulled pulled;
  pulled.id = pull.id;
  pulled.part = pull.part;
  pulled.code = why.code;
  pulled.sentence = std::move(why.message);
  members.send(to, std::move(pulled), actions);
}

void JobStore::on_pull(const protocol::Member& from, const protocol::Pull& body, SharedBytes indices,
                       const Members& members, Actions& actions) {
  Part* part = local(body.part);
  if (!part) {
    return refuse(from, body,
                  {ErrorCode::kInvalidArgument,
                   fmt::format("part {} of job '{}' is not on shard {}", body.part, header_.name, header_.shard)},
                  members, actions);
  }
  if (body.offset > part->dimension || body.count > part->dimension - body.offset) {
    return refuse(from, body,
                  {ErrorCode::kInvalidArgument, fmt::format("values {} to {} of part {}, which has {}", body.offset,
                                                            body.offset + body.count, body.part, part->dimension)},
                  members, actions);
  }
  size_t waiting = 0;
  for (Part& each : parts_) {
    std::erase_if(each.waiting,
                  [&](const Operation& one) { return one.asked.worker == from.worker && one.asked.id == body.id; });
    const auto of_worker = [&](const Operation& one) {
      return std::holds_alternative<StoreTask::Read>(one.work) && one.asked.worker == from.worker;
    };
    waiting += static_cast<size_t>(std::ranges::count_if(each.waiting, of_worker) +
                                   std::ranges::count_if(each.queue, of_worker));
  }
  if (waiting >= kPullsMax || queued_bytes_->used_bytes() + indices.bytes.size() > kQueuedBytesMax) {
    return refuse(from, body, {ErrorCode::kUnavailable, "too many pulls wait at this shard; ask again"}, members,
                  actions);
  }
  MemoryCharge charge(*queued_bytes_, indices.bytes.size());
  part->waiting.push_back({.work = StoreTask::Read{body.offset, body.count, std::move(indices), std::max(body.run, 1U)},
                           .asked = {from.worker, from.incarnation, body.id, body.at_least},
                           .charge = std::move(charge)});
  begin_waiting(*part, actions);
}

void JobStore::answer(const Part& part, const Operation& operation, const StoreTask& task, const Members& members,
                      Actions& actions) const {
  const protocol::Member* to = find_member(members.membership(), operation.asked.worker);
  if (!to || to->incarnation != operation.asked.incarnation) return;
  if (!task.result()) {
    protocol::Pull pull;
    pull.id = operation.asked.id;
    pull.part = part.part;
    return refuse(*to, pull, task.result().error(), members, actions);
  }
  count(Metric::kPulls, "answered", actions);
  protocol::Pulled pulled;
  pulled.id = operation.asked.id;
  pulled.part = part.part;
  pulled.values = static_cast<uint32_t>(task.result()->bytes.size() / sizeof(float));
  pulled.n = part.position.n;
  pulled.payload_hash = task.hash();
  members.send(*to, std::move(pulled), *task.result(), actions);
}

void JobStore::on_place(const protocol::Member& from, const protocol::Place& body, SharedBytes values,
                        const Members& members, Actions& actions) {
  const auto drop = [&](std::string_view why) { actions.metrics.push_back({Metric::kDropped, header_.name, why, 1}); };
  Part* part = local(body.part);
  if (!part || header_.spec.store.begin != protocol::StoreBegin::kWorker) return drop("impossible_place");
  // recover() chooses the part's beginning. Until then its arrays are gone, or of a log that may be void.
  if (dropped_) {
    part->notice = Part::Notice::kOwed;
    return drop("place_while_recovering");
  }
  if (part->ready) return drop("late_place");
  if (members.all().empty() || members.all().front().worker != from.worker) return drop("not_the_placer");
  if (body.offset == 0) {
    ++part->placing;
    part->placed = 0;
    part->placer = from.worker;
    part->placing_failed = false;
    part->notice = Part::Notice::kNone;
  }
  const uint64_t count = values.bytes.size() / sizeof(float);
  if (body.offset != part->placed || part->placer != from.worker || part->placing_failed) {
    send_notice(*part, members, actions);
    return drop("place_out_of_order");
  }
  if (count > part->dimension - part->placed) return drop("impossible_place");
  if (queued_bytes_->used_bytes() + values.bytes.size() > kQueuedBytesMax) {
    part->placing_failed = true;
    send_notice(*part, members, actions);
    return drop("place_too_much");
  }
  part->placed += count;
  MemoryCharge charge(*queued_bytes_, values.bytes.size());
  ask(*part,
      {.work = StoreTask::Place{body.offset, body.payload_hash, std::move(values)},
       .placing = part->placing,
       .charge = std::move(charge)},
      actions);
}

/// Says once to the lowest member that a run of its first weights was dropped: it places the part again (Pulled).
void JobStore::send_notice(Part& part, const Members& members, Actions& actions) const {
  if (part.notice == Part::Notice::kSent || members.all().empty()) return;
  part.notice = Part::Notice::kSent;
  protocol::Pulled notice;
  notice.part = part.part;
  notice.code = ErrorCode::kUnavailable;
  notice.sentence = "first weights of this part were dropped; place them again";
  members.send(members.all().front(), std::move(notice), actions);
}

void JobStore::placed(Part& part, const Operation& operation, const StoreTask& task, const Members* members,
                      Actions& actions) {
  if (operation.placing != part.placing || part.ready) return;  // restarted since
  if (!task.result()) {
    part.placing_failed = true;
    actions.log.push_back({Severity::kWarning, fmt::format("job '{}': first weights of part {}: {}", header_.name,
                                                           part.part, task.result().error().message)});
    if (members) send_notice(part, *members, actions);
    return;
  }
  const auto& place = std::get<StoreTask::Place>(operation.work);
  const uint64_t end = place.offset + place.values.bytes.size() / sizeof(float);
  if (!part.placing_failed && end == part.dimension) become_ready(part, actions);
}

void JobStore::on_membership(const Members& members) {
  for (Part& part : parts_) {
    std::erase_if(part.waiting, [&](const Operation& one) {
      const protocol::Member* member = find_member(members.membership(), one.asked.worker);
      return !member || member->incarnation != one.asked.incarnation;
    });
  }
}

std::vector<uint32_t> JobStore::waits_for(const Members& members) const {
  const bool places = header_.spec.store.begin == protocol::StoreBegin::kWorker;
  if (!places || members.all().empty() || is_ready()) return {};
  return {members.all().front().worker};
}

std::string JobStore::waiting_because(const Members& members) const {
  if (first_weights_unsaved_ && is_ready()) return "its first weights are being saved";
  if (is_ready()) return "updates are still going into the weights";
  if (loading_) return "it reads its save";
  const std::vector<uint32_t> workers = waits_for(members);
  if (workers.empty()) return "it makes room for its weights";
  return fmt::format("it has no first weights of worker {}", workers.front());
}

}  // namespace millrace::server
