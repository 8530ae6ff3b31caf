#include <map>

#include "tests/sim/sim_shard.h"
#include "tests/support/oracles/optimizer_oracle.h"

/// The disk of a shard, and its weights against the replay of the log that they say they are of.
namespace millrace::testing {

void SimShard::ask_disk(std::vector<server::StoreRequest>& requests) {
  for (server::StoreRequest& request : requests) asked_of_disk_.push_back(std::move(request));
  requests.clear();
  if (!disk_is_busy_ && !asked_of_disk_.empty()) serve_disk_later();
}

void SimShard::serve_disk_later() {
  disk_is_busy_ = true;
  const TimeNs takes = world_.scheduler.draw(0, world_.scenario.disk_max);
  world_.scheduler.after(takes, [this, generation = generation()] { run_in(generation, [this] { serve_disk(); }); });
}

void SimShard::serve_disk() {
  disk_is_busy_ = false;
  const server::StoreRequest request = std::move(asked_of_disk_.front());
  asked_of_disk_.pop_front();
  server::Actions actions;
  const TimeNs time = now();
  const bool fails = world_.scheduler.chance(world_.scenario.disk_fails);
  if (request.what == server::StoreRequest::What::kLoad) {
    auto loaded = fails ? fail(ErrorCode::kIo, "the disk does not read") : disk_.load(request.name);
    core_->on_store_loaded(request.job, std::move(loaded), time, actions);
  } else if (fails) {
    core_->on_store_written(request.job, fail(ErrorCode::kIo, "no space left on this disk"), time, actions);
  } else {
    disk_.write(request);
    if (request.what == server::StoreRequest::What::kEnd) check_save(request.name);
    core_->on_store_written(request.job, {}, time, actions);
  }
  after_call(actions);
  if (alive() && !disk_is_busy_ && !asked_of_disk_.empty()) serve_disk_later();
}

/// Leaves the disk as the process died: some of the requests may have been carried out, and not answered.
void SimShard::leave_disk() {
  disk_is_busy_ = false;
  if (asked_of_disk_.empty()) return;
  const uint64_t done = world_.scheduler.dice().next_below(asked_of_disk_.size() + 1);
  for (uint64_t at = 0; at < done; ++at) {
    if (asked_of_disk_[at].what != server::StoreRequest::What::kLoad) disk_.write(asked_of_disk_[at]);
  }
  asked_of_disk_.clear();
  disk_.forget_unfinished();
}

void SimShard::check_save(const std::string& job_name) {
  const auto file = disk_.load(job_name);
  if (!file) return world_.fault(name() + " saved what cannot be read: " + file.error().message);
  if (file->header.job != world_.job) return;
  for (const server::StorePart& part : file->parts) check_arrays("saved", part.part, part.position, part.arrays);
}

void SimShard::check_store() {
  const server::JobStore* store = alive() && core_ ? core_->store(world_.job) : nullptr;
  if (store == nullptr) return;
  for (const protocol::PartLayout& part : world_.layout.parts) {
    if (part.shard != shard_) continue;
    const server::StoreArrays& arrays = store->arrays(part.part);
    if (arrays.weights.empty()) continue;  // not there yet
    check_arrays("holds", part.part, store->position(part.part), arrays);
    if (incarnation_ > 1 && store->position(part.part).n != 0) lives_with_store_.insert(incarnation_);
  }
}

void SimShard::check_arrays(const std::string& what, uint32_t part, const server::StorePosition& position,
                            const server::StoreArrays& arrays) {
  const auto& epochs = position.summary.epochs;
  const LogPosition at{position.n, epochs.empty() ? 0 : epochs.back().first};
  const protocol::PartLayout& range = world_.layout.parts[part];
  const std::vector<LogPosition> path = world_.oracle.path(part, 0, at);
  if (path.size() != position.n) return;  // of a step that was sent to no worker: nothing is known of it
  OptimizerOracle oracle(world_.scenario.spec.store.optimizer, std::vector<float>(range.end - range.begin));
  for (const LogPosition& place : path) {
    const DecidedStep& step = *world_.oracle.find(part, place);
    std::map<uint32_t, float> sum;
    for (size_t i = 0; i < step.update.values.size(); ++i)
      sum[step.update.dense ? static_cast<uint32_t>(i) : step.update.indices[i]] = step.update.values[i];
    oracle.step(sum, denominator_of(world_.scenario.spec, step.contributors.size(), step.weight_sum));
  }
  ++store_checks_;
  if (arrays.weights == oracle.weights() && arrays.steps == position.n) return;
  world_.fault(name() + " " + what + " weights of part " + std::to_string(part) + " after " +
               std::to_string(position.n) + " steps that are not the replay of its log");
}

}  // namespace millrace::testing
