#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/group_speeds.h"
#include "worker/peer/algorithms/planner.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/algorithms/summing_speeds.h"
#include "worker/peer/collectives/allgather.h"
#include "worker/peer/collectives/contribution.h"

/// auto: the exact sum by the algorithm that is the fastest here. The first step measures the network among the ranks,
/// how fast they add, and how many entries they have. It then ranks the algorithms by the papers' cost models. Those
/// whose messages may become longer than the transport carries take no part.
///
/// The steps after it try out the best of them, dense ones among them. Each has blocks of steps, as in a job. So links
/// and caches are in the state that the algorithm's own last step left. Each pass over the candidates leaves out those
/// that are clearly slower, in their fastest step too. The others have longer blocks. In the end it keeps the one whose
/// steps' median is least, where a step takes the slowest rank's time. Every kPeriod steps it starts again: densities
/// change.
///
/// All ranks  choose alike: by numbers that all of them have.
/// Any step   is an exact sum, with any of the algorithms.
/// Source     the models: planner.h. Trying out is ours: no model knows of cores that ranks share, or links that others
///            use.
namespace millrace::peer {
namespace {

constexpr uint64_t kPeriod = 2'000;   ///< steps
constexpr size_t kCandidatesMax = 8;  ///< tried out
constexpr double kWithin = 6;         ///< ... those within this multiple of the best one's time, by the models.
constexpr double kCodeBytes = 4096;   ///< of a message, beside its entries
/// A pass over the remaining candidates: timed steps each, behind one that warms up.
struct Pass {
  uint32_t steps = 0;
  double keeps_within = 0;  ///< of the best one's median; those whose fastest step is slower go
};
// Those that come close are seen in several passes: what disturbs a machine for a while does not disturb all blocks of
// one.
constexpr std::array<Pass, 5> kPasses{{{2, 2.0}, {4, 1.5}, {8, 1.25}, {8, 1.1}, {8, 1.0}}};
constexpr uint32_t kFirstTag =
    1U << 30;  ///< behind those of the algorithms; each with room for as many as there are ranks
constexpr uint32_t kTogetherTag = kFirstTag + (3U << 20);
constexpr uint32_t kTimesTag = kFirstTag + (4U << 20);
constexpr uint32_t kOrderTag = kFirstTag + (5U << 20);

double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// Returns at most how many bytes a message of the algorithm has, of any contributions. Slices become dense
/// where that is smaller, and whole sparse contributions do not.
double message_bytes_max(const AlgorithmInfo& info, const SumShape& shape) {
  const auto slice_of = algorithm_entry(info.id).message_values;
  const auto values =
      static_cast<double>(slice_of == nullptr ? shape.dimension : slice_of(shape.dimension, shape.ranks));
  const bool may_be_pairs = slice_of == nullptr && !info.dense_only;
  return values * (may_be_pairs ? CostChain::kPairBytes : CostChain::kValueBytes) + kCodeBytes;
}

/// Leaves out the algorithms that may send longer messages than the transport carries. Where none remains: all but
/// those with the shortest.
void leave_out_long_messages(std::vector<PlannedCost>& ranking, const SumShape& shape, uint64_t body_bytes_max) {
  const auto bytes_of = [&shape](const PlannedCost& one) { return message_bytes_max(one.info, shape); };
  const double shortest = bytes_of(*std::ranges::min_element(ranking, {}, bytes_of));
  const double allowed = std::max(shortest, static_cast<double>(body_bytes_max));
  std::erase_if(ranking, [&](const PlannedCost& one) { return bytes_of(one) > allowed; });
}

double seconds_of(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerS); }

class Automatic final : public Allreduce {
 public:
  explicit Automatic(const AllreduceSettings& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kAuto); }
  uint64_t next_step() const override { return step_; }
  bool is_settled() const override { return chosen_.has_value(); }
  std::string choice() const override { return chosen_ ? why_ : ""; }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    if (Status status = check_contribution(given, settings_); !status) co_return std::unexpected(status.error());
    const uint64_t at = step_++ % kPeriod;
    if (at == 0) {
      Status begun = co_await begin(channel, given.own.view);
      if (!begun) {
        --step_;  // a step that did not start is not counted
        co_return std::unexpected(begun.error());
      }
    }
    if (chosen_) co_return co_await candidates_[*chosen_].allreduce->run(channel, std::move(given));
    co_return co_await try_out(channel, std::move(given));
  }

 private:
  struct Candidate {
    const AlgorithmInfo* info = nullptr;
    std::unique_ptr<Allreduce> allreduce;
    std::vector<double> own_s;      ///< this rank's times of the pass
    std::vector<double> slowest_s;  ///< of the passes before, of all ranks
    double median_s = 0;
  };

  Task<Result<Reduced>> try_out(Channel& channel, Contribution given) {
    const uint64_t block = uint64_t{kPasses[pass_].steps} + 1;
    Candidate& tried = candidates_[left_[in_pass_ / block]];
    // All start together: the others would wait for a late rank in any algorithm.
    std::vector<double> word(1);
    auto together = co_await allgather_numbers<double>(channel, std::move(word), kTogetherTag);
    if (!together) co_return std::unexpected(together.error());
    const TimeNs from = channel.clock();
    Result<Reduced> reduced = co_await tried.allreduce->run(channel, std::move(given));
    if (!reduced) co_return std::unexpected(reduced.error());
    if (in_pass_ % block != 0) tried.own_s.push_back(seconds_of(channel.clock() - from));
    if (++in_pass_ == block * left_.size()) {
      Status ended = co_await end_pass(channel);
      if (!ended) co_return std::unexpected(ended.error());
    }
    co_return reduced;
  }

  /// Measures, and makes the candidates.
  Task<Status> begin(Channel& channel, const StreamView& own) {
    chosen_.reset();
    candidates_.clear();
    left_.clear();
    pass_ = 0;
    in_pass_ = 0;
    GroupSpeeds mine{.speeds = {}, .entries = static_cast<double>(own.count())};
    if (channel.size() > 1) {
      mine.speeds.contribution = coding_of(settings_.wire.contribution, own, channel);
      mine.speeds.sums = coding_of(settings_.wire.sums, own, channel);
    }
    const Result<GroupSpeeds> group = co_await measure_group(channel, mine, kFirstTag);
    if (!group) co_return std::unexpected(group.error());
    // Processors of different kinds may round the models' logarithms differently: rank 0's order counts.
    auto all = co_await allgather_numbers<uint32_t>(channel, ids_by_cost(*group, channel), kOrderTag);
    if (!all) co_return std::unexpected(all.error());
    co_return make_candidates(all->front());
  }

  /// Bytes and times of an entry; of pairs where there is no codec, or none that takes this contribution (its run says
  /// why).
  static EntryCoding coding_of(const std::optional<CodecSpec>& codec, const StreamView& own, Channel& channel) {
    return measure_coding(codec, own, [&channel] { return channel.clock(); }).value_or(EntryCoding{});
  }

  /// Returns the algorithms whose messages fit and that the models have within kWithin of the best one, the best first.
  std::vector<uint32_t> ids_by_cost(const GroupSpeeds& group, Channel& channel) const {
    const auto k = std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(group.entries)), 1, settings_.dimension);
    const SumShape shape{.dimension = settings_.dimension, .k = k, .ranks = channel.size()};
    std::vector<PlannedCost> ranking = rank_algorithms(shape, group.speeds, Wanted::kExactSum);
    leave_out_long_messages(ranking, shape, channel.bodies().body_bytes_max());
    std::vector<uint32_t> ids;
    for (const PlannedCost& one : ranking) {
      if (one.total_s() > kWithin * ranking.front().total_s()) break;
      ids.push_back(static_cast<uint32_t>(one.info.id));
    }
    return ids;
  }

  /// Errors   those of the best algorithm, where none can be made of these settings. malformed: no algorithm's number.
  Status make_candidates(std::span<const uint32_t> ids) {
    if (ids.empty()) return fail(ErrorCode::kMalformed, "auto: rank 0 names no algorithm");
    Status status;
    for (const uint32_t number : ids) {
      if (candidates_.size() == kCandidatesMax) break;
      const auto id = static_cast<AlgorithmId>(number);
      const bool is_one = number != 0 && number < static_cast<uint32_t>(AlgorithmId::kAuto);
      if (!is_one || algorithm_info(id).result != ResultKind::kExactSum)
        return fail(ErrorCode::kMalformed, "auto: rank 0 names an algorithm that this rank lacks");
      auto made = make_allreduce(id, settings_);
      if (!made) {
        if (status) status = std::unexpected(made.error());
        continue;
      }
      left_.push_back(candidates_.size());
      Candidate& candidate = candidates_.emplace_back();
      candidate.info = &algorithm_info(id);
      candidate.allreduce = std::move(*made);
    }
    return candidates_.empty() ? status : Status{};
  }

  /// Tells the ranks' times to each other; leaves the slower ones out, and in the end all but one.
  Task<Status> end_pass(Channel& channel) {
    std::vector<double> times;
    for (const size_t at : left_) {
      std::ranges::move(candidates_[at].own_s, std::back_inserter(times));
      candidates_[at].own_s.clear();
    }
    const size_t count = times.size();
    auto all = co_await allgather_numbers<double>(channel, std::move(times), kTimesTag);
    if (!all) co_return std::unexpected(all.error());
    std::vector<double> slowest(count, 0.0);
    for (const std::vector<double>& one : *all) {
      if (one.size() != count) co_return fail(ErrorCode::kMalformed, "auto: a rank tried out something else");
      for (size_t i = 0; i < count; ++i) slowest[i] = std::max(slowest[i], one[i]);
    }
    leave_out(slowest);
    co_return Status{};
  }

  void leave_out(std::span<const double> slowest) {
    const Pass& pass = kPasses[pass_];
    for (size_t i = 0; i < left_.size(); ++i) {
      Candidate& one = candidates_[left_[i]];
      std::ranges::copy(slowest.subspan(i * pass.steps, pass.steps), std::back_inserter(one.slowest_s));
      one.median_s = middle_of(one.slowest_s);
    }
    const size_t best = *std::ranges::min_element(left_, {}, [this](size_t at) { return candidates_[at].median_s; });
    std::erase_if(left_, [&](size_t at) {
      // Of few steps the median may be disturbed: another process had the core. All of them hardly are.
      const bool goes = std::ranges::min(candidates_[at].slowest_s) > pass.keeps_within * candidates_[best].median_s;
      if (goes) candidates_[at].allreduce.reset();
      return goes;
    });
    in_pass_ = 0;
    if (++pass_ < kPasses.size() && left_.size() > 1) return;
    chosen_ = best;
    why_ = text_of_choice();
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (i != best) candidates_[i].allreduce.reset();
    }
  }

  /// "ssar_split_allgather (12.1 ms; dense_ring 88.0 ms)"
  std::string text_of_choice() const {
    const auto ms = [this](size_t at) {
      char text[32];
      std::snprintf(text, sizeof(text), "%.3g ms", 1e3 * candidates_[at].median_s);
      return std::string(text);
    };
    std::string text = std::string(candidates_[*chosen_].info->name) + " (" + ms(*chosen_);
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (i != *chosen_) text.append("; ").append(candidates_[i].info->name).append(" ").append(ms(i));
    }
    return text + ")";
  }

  AllreduceSettings settings_;
  std::vector<Candidate> candidates_;
  std::vector<size_t> left_;  ///< of the candidates: those that are still tried out
  size_t pass_ = 0;
  uint64_t in_pass_ = 0;  ///< steps
  std::optional<size_t> chosen_;
  std::string why_;
  uint64_t step_ = 0;
};

}  // namespace

AlgorithmEntry automatic_entry() {
  return {.info = {.id = AlgorithmId::kAuto,
                   .name = "auto",
                   .source = "the papers' cost models, and trying out",
                   .result = ResultKind::kExactSum,
                   .chooses = true},
          .make = make_of<Automatic>};
}

}  // namespace millrace::peer
