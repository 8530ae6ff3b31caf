#include <algorithm>
#include <cmath>

#include "tests/sim/sim_worker.h"

namespace millrace::testing {
namespace {

void add_to(std::vector<double>& target, const StreamView<float>& stream, uint64_t begin) {
  for (size_t i = 0; i < stream.values.size(); ++i)
    target[begin + (stream.dense ? i : stream.indices[i])] += static_cast<double>(stream.values[i]);
}

bool same_entries(const StreamView<float>& a, const StreamView<float>& b) {
  std::vector<double> left(a.dimension, 0.0);
  std::vector<double> right(a.dimension, 0.0);
  if (a.dimension != b.dimension) return false;
  add_to(left, a, 0);
  add_to(right, b, 0);
  return left == right;
}

}  // namespace

void SimWorker::check_law() {
  if (!core_ || was_killed_ || left_the_run_) return;
  for (uint32_t bucket = 0; bucket < entered_.size(); ++bucket) check_bucket(bucket);
  check_saved_state();
}

/// whole: all of O. still_owed: what of it is not yet in the log's books: everything of a contribution that is
/// undecided or was not
/// counted, the entries that were not carried of one that was counted.
void SimWorker::add_outstanding(uint32_t bucket, std::vector<double>& whole, std::vector<double>& still_owed) {
  for (const auto& out : core_->outstanding(bucket)) {
    const std::string where = name() + " part " + std::to_string(out.part) + " step " + std::to_string(out.step);
    add_to(whole, out.sent, out.begin);
    const Stream<float>* seen = world_.oracle.contribution(out.part, out.step, worker_, out.life);
    if (seen != nullptr && !same_entries(out.sent, seen->view()))
      world_.fault(where + ": sent is not what the receiver decodes");
    if (!world_.oracle.counted(out.part, out.step, worker_, out.life)) {
      add_to(still_owed, out.sent, out.begin);
      continue;
    }
    const DecidedStep& decided = world_.oracle.log(out.part)[out.step];
    for (size_t i = 0; i < out.sent.values.size(); ++i) {
      const size_t index = out.sent.dense ? i : out.sent.indices[i];
      if (!decided.carried[index]) still_owed[out.begin + index] += static_cast<double>(out.sent.values[i]);
    }
  }
}

void SimWorker::check_bucket(uint32_t bucket) {
  const std::vector<double>& entered = entered_[bucket];
  std::vector<double> held(entered.size(), 0.0);
  const Stream<float> residual = core_->residual(bucket);
  add_to(held, residual.view(), 0);
  std::vector<double> whole(entered.size(), 0.0);
  add_outstanding(bucket, whole, held);
  const auto carried = world_.oracle.carried(worker_, core_->life(), bucket);
  const auto ledger = core_->ledger(bucket);
  const auto entered_core = core_->entered(bucket);
  const double slack = world_.scenario.exact ? 0.0 : 1e-3;
  for (size_t i = 0; i < entered.size(); ++i) {
    const double accounted = held[i] + carried[i] + ledger[i];
    const bool lawful = std::fabs(entered[i] - accounted) <= slack * (1 + std::fabs(entered[i]));
    if (lawful && entered_core[i] == entered[i]) continue;
    return world_.fault(name() + " bucket " + std::to_string(bucket) + " index " + std::to_string(i) + ": entered " +
                        std::to_string(entered[i]) + " (the core says " + std::to_string(entered_core[i]) +
                        "), accounted for " + std::to_string(accounted) + " = residual and in flight " +
                        std::to_string(held[i]) + " + carried " + std::to_string(carried[i]) + " + ledger " +
                        std::to_string(ledger[i]));
  }
}

void SimWorker::check_saved_state() {
  const worker::SavedState state = core_->saved_state();
  if (state.tensors.size() != pushed_.size())
    return world_.fault(name() + ": the saved state has another number of tensors");
  const auto encoded = worker::encode_saved_state(state);
  const auto decoded = worker::decode_saved_state(encoded);
  if (!decoded) return world_.fault(name() + ": the saved state cannot be read: " + decoded.error().message);
  for (const auto& bucket : world_.layout.buckets) {
    std::vector<double> whole(bucket.dimension, 0.0);
    std::vector<double> ignored(bucket.dimension, 0.0);
    const Stream<float> residual = core_->residual(bucket.bucket);
    add_to(whole, residual.view(), 0);
    add_outstanding(bucket.bucket, whole, ignored);
    std::vector<double> saved(bucket.dimension, 0.0);
    for (const auto& member : bucket.members) {
      const auto& tensor = decoded->tensors[member.tensor];
      add_to(saved, tensor.residual.view(), member.offset);
      if (tensor.steps_pushed != pushed_[member.tensor])
        return world_.fault(name() + ": the saved state has another number of steps pushed");
    }
    const double slack = world_.scenario.exact ? 0.0 : 1e-3;
    for (size_t i = 0; i < saved.size(); ++i) {
      if (std::fabs(saved[i] - whole[i]) <= slack * (1 + std::fabs(whole[i]))) continue;
      return world_.fault(name() + " bucket " + std::to_string(bucket.bucket) + " index " + std::to_string(i) +
                          ": saved " + std::to_string(saved[i]) + ", residual and everything in flight are " +
                          std::to_string(whole[i]));
    }
  }
}

void SimWorker::check_finished() {
  for (uint32_t part = 0; part < applied_.size(); ++part) {
    const uint64_t steps = world_.scenario.steps[worker_];
    if (applied_[part] < steps)
      world_.fault(name() + " finished with part " + std::to_string(part) + " at step " +
                   std::to_string(applied_[part]));
  }
  for (uint32_t bucket = 0; bucket < entered_.size(); ++bucket) {
    if (!core_->outstanding(bucket).empty()) world_.fault(name() + " finished with contributions in flight");
  }
}

}  // namespace millrace::testing
