#include "server/aggregation/step_threshold.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::server {
namespace {

/// Parts of a bucket are at most a step apart, here and at other shards.
constexpr uint64_t kStepsRetained = 3;

}  // namespace

std::optional<SumThreshold> StepThreshold::threshold(uint64_t step) const {
  if (step == 0) return SumThreshold{};
  const auto found = thresholds_.find(step);
  return found == thresholds_.end() ? std::nullopt : std::optional(found->second);
}

void StepThreshold::agree(uint64_t step, const Board& board) {
  SumHistogram all;
  all.add(*board.own);
  for (const auto& [shard, histogram] : board.remote) all.add(*histogram);
  thresholds_.insert_or_assign(step + 1, threshold_of(all, config_.k));
}

SharedHistogram StepThreshold::on_decided(size_t local_part, uint64_t step, SharedHistogram histogram, TimeNs now) {
  MILLRACE_CHECK(local_part < config_.local_parts && histogram, local_part, config_.local_parts);
  Board& board = boards_[step];
  board.local.resize(config_.local_parts);
  board.local[local_part] = std::move(histogram);
  if (std::ranges::any_of(board.local, [](const SharedHistogram& one) { return !one; })) return nullptr;
  auto sum = std::make_shared<MagnitudeHistogram>();
  sum->add(board.local);
  board.own = config_.account ? charged(std::move(sum), *config_.account) : std::move(sum);
  next_ = step + 1;
  for (const uint32_t shard : config_.shards) board.reported_at[shard] = now;
  if (complete(board)) agree(step, board);
  SharedHistogram own = board.own;
  std::erase_if(boards_, [this](const auto& one) { return one.first + kStepsRetained <= next_; });
  std::erase_if(thresholds_, [this](const auto& one) { return one.first + kStepsRetained <= next_; });
  return own;
}

StepThreshold::Remote StepThreshold::on_remote(uint32_t shard, uint64_t step, SharedHistogram histogram) {
  if (shard == config_.shard || !std::ranges::binary_search(config_.shards, shard)) return Remote::kUnknownShard;
  // To decide the step after the one that this shard has not decided, the other one would need this one's histogram.
  if (step > next_) return Remote::kAhead;
  if (step + kStepsRetained <= next_) return Remote::kLate;
  Board& board = boards_[step];
  if (!board.remote.emplace(shard, std::move(histogram)).second) return Remote::kRepeated;
  if (complete(board)) agree(step, board);
  return Remote::kTaken;
}

SharedHistogram StepThreshold::answer_to(uint32_t shard, uint64_t step, TimeNs now) {
  const auto found = boards_.find(step);
  if (found == boards_.end() || !found->second.own) return nullptr;
  TimeNs& said = found->second.reported_at[shard];
  if (now < said + config_.repeat_ns) return nullptr;
  said = now;
  return found->second.own;
}

/// Returns the board that the next step waits for, where its own part is there; nullptr: none.
const StepThreshold::Board* StepThreshold::waiting() const {
  if (next_ == 0 || config_.shards.size() == 1) return nullptr;
  const auto found = boards_.find(next_ - 1);
  return found == boards_.end() || complete(found->second) ? nullptr : &found->second;
}

std::optional<TimeNs> StepThreshold::deadline() const {
  const Board* board = waiting();
  if (board == nullptr) return std::nullopt;
  std::optional<TimeNs> first;
  for (const uint32_t shard : missing(next_)) {
    const TimeNs at = board->reported_at.at(shard) + config_.repeat_ns;
    if (!first || at < *first) first = at;
  }
  return first;
}

std::optional<StepThreshold::Repeat> StepThreshold::repeat(TimeNs now) {
  if (waiting() == nullptr) return std::nullopt;
  Board& board = boards_.at(next_ - 1);
  Repeat again{next_ - 1, board.own, {}};
  for (const uint32_t shard : missing(next_)) {
    TimeNs& said = board.reported_at[shard];
    if (now < said + config_.repeat_ns) continue;
    said = now;
    again.to.push_back(shard);
  }
  return again.to.empty() ? std::nullopt : std::optional(std::move(again));
}

std::vector<uint32_t> StepThreshold::missing(uint64_t step) const {
  std::vector<uint32_t> shards;
  const auto board = step == 0 ? boards_.end() : boards_.find(step - 1);
  if (board == boards_.end()) return shards;
  for (const uint32_t shard : config_.shards) {
    if (shard != config_.shard && !board->second.remote.contains(shard)) shards.push_back(shard);
  }
  return shards;
}

}  // namespace millrace::server
