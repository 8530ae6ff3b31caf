#include "worker/session/weight_runs.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::worker {

void WeightRuns::ask(const GiveWeights& asked) {
  if (asked == giving_ || std::ranges::find(asked_, asked) != asked_.end()) return;
  asked_.push_back(asked);
}

void WeightRuns::keep_epoch(uint64_t epoch) {
  std::erase_if(asked_, [epoch](const GiveWeights& one) { return one.epoch != epoch; });
  if (giving_ && giving_->epoch != epoch) drop_runs();
}

void WeightRuns::drop_runs() {
  giving_.reset();
  runs_.clear();
}

std::optional<SendAction> WeightRuns::take_run() {
  if (runs_.empty()) {
    giving_.reset();
    return std::nullopt;
  }
  SendAction run = std::move(runs_.front());
  runs_.pop_front();
  return run;
}

std::optional<GiveWeights> WeightRuns::take_request() {
  MILLRACE_CHECK(runs_.empty(), runs_.size());
  if (asked_.empty()) return std::nullopt;
  giving_ = asked_.front();
  asked_.pop_front();
  return giving_;
}

void WeightRuns::give(std::vector<SendAction>&& runs) {
  runs_.assign(std::make_move_iterator(runs.begin()), std::make_move_iterator(runs.end()));
}

}  // namespace millrace::worker
