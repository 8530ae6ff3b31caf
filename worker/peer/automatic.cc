#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "worker/peer/allgather.h"
#include "worker/peer/contribution.h"
#include "worker/peer/kernel_speeds.h"
#include "worker/peer/planner.h"
#include "worker/peer/registry.h"

/// auto: the exact sum by whichever algorithm is the fastest here. The first step measures the network among the ranks, how fast
/// they add, and how many entries they have, and ranks the algorithms by the papers' cost models; the steps after it take the
/// best of them in turn, dense ones among them, and what took the slowest rank least is kept. Every kPeriod steps it begins anew:
/// densities change.
///
/// All ranks   choose alike: by numbers that all of them have.
/// Any step    is an exact sum, whichever algorithm makes it.
/// Source      the models: planner.h. Trying out is ours: no model knows of cores that ranks share, or links that others use.
namespace millrace::peer {
namespace {

constexpr uint64_t kPeriod = 2'000;   ///< steps
constexpr size_t kCandidatesMax = 5;  ///< tried out
constexpr double kWithin = 6;         ///< ... those that the models say take up to so many times the best one's time
constexpr uint64_t kRounds = 3;       ///< each in turn; the first one warms up
constexpr uint32_t kFirstTag = 1U << 30;  ///< behind those of the algorithms
constexpr uint32_t kPings = 8;
constexpr size_t kStreamBytes = 1U << 17;  ///< of a message that is taken for long
constexpr uint32_t kStreams = 3;
constexpr size_t kMeasurements = 5;

/// What one rank has measured, or has.
struct Measured {
  double latency_s = 0;
  double byte_s = 0;
  double add_entry_s = 0;
  double add_value_s = 0;
  double entries = 0;
};

double seconds_of(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerS); }

Packet bytes_packet(size_t size) { return {BodyForm::kNumbers, SharedBytes::from(ByteBuffer(size))}; }

/// There and back with a neighbour, several times: half of the fastest.
Task<double> ping(Channel& channel, uint32_t first_tag) {
  const uint32_t partner = channel.rank() ^ 1U;
  if (partner >= channel.size()) co_return 0.0;
  const bool begins = channel.rank() < partner;
  TimeNs best = INT64_MAX;
  for (uint32_t i = 0; i < kPings; ++i) {
    const TimeNs begin = channel.clock();
    if (begins) channel.send(partner, first_tag + i, bytes_packet(8));
    co_await channel.receive(partner, first_tag + i);
    if (!begins) channel.send(partner, first_tag + i, bytes_packet(8));
    if (begins) best = std::min(best, channel.clock() - begin);
  }
  co_return begins ? seconds_of(best) / 2 : 0.0;
}

/// Everybody to the next one around the ring, at the same time: the fastest of several.
Task<double> stream(Channel& channel, uint32_t first_tag) {
  const uint32_t size = channel.size();
  const uint32_t next = (channel.rank() + 1) % size;
  const uint32_t before = (channel.rank() + size - 1) % size;
  TimeNs best = INT64_MAX;
  for (uint32_t i = 0; i < kStreams; ++i) {
    const TimeNs begin = channel.clock();
    channel.send(next, first_tag + i, bytes_packet(kStreamBytes));
    co_await channel.receive(before, first_tag + i);
    best = std::min(best, channel.clock() - begin);
  }
  co_return seconds_of(best) / static_cast<double>(kStreamBytes);
}

template <typename T>
class Automatic final : public Allreduce<T> {
 public:
  explicit Automatic(const AllreduceSettings<T>& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kAuto); }
  uint64_t next_step() const override { return step_; }
  bool is_settled() const override { return chosen_.has_value(); }
  std::string choice() const override { return chosen_ ? why_ : ""; }

  Task<Result<Reduced<T>>> run(Channel& channel, HeldStream<T> own) override {
    if (Status status = check_contribution(own.view, settings_); !status) co_return std::unexpected(status.error());
    const uint64_t at = step_++ % kPeriod;
    if (at == 0) {
      Status begun = co_await begin(channel, own.view);
      if (!begun) co_return std::unexpected(begun.error());
    }
    if (chosen_) co_return co_await candidates_[*chosen_].allreduce->run(channel, std::move(own));
    Candidate& tried = candidates_[at % candidates_.size()];
    const TimeNs from = channel.clock();
    Result<Reduced<T>> reduced = co_await tried.allreduce->run(channel, std::move(own));
    if (!reduced) co_return std::unexpected(reduced.error());
    if (at >= candidates_.size()) tried.best_s = std::min(tried.best_s, seconds_of(channel.clock() - from));
    if (at + 1 == kRounds * candidates_.size()) {
      Status settled = co_await settle(channel);
      if (!settled) co_return std::unexpected(settled.error());
    }
    co_return reduced;
  }

 private:
  struct Candidate {
    const AlgorithmInfo* info = nullptr;
    std::unique_ptr<Allreduce<T>> allreduce;
    double best_s = std::numeric_limits<double>::infinity();
  };

  /// Measures, and makes what is to be tried out.
  Task<Status> begin(Channel& channel, const StreamView<T>& own) {
    chosen_.reset();
    candidates_.clear();
    MachineSpeeds speeds;
    double entries = static_cast<double>(own.count());
    if (channel.size() > 1) {
      std::vector<double> mine(kMeasurements);
      mine[0] = co_await ping(channel, kFirstTag);
      mine[1] = co_await stream(channel, kFirstTag + kPings);
      const KernelSpeeds kernels = measure_kernel_speeds<T>([&channel] { return channel.clock(); });
      mine[2] = kernels.add_entry_s;
      mine[3] = kernels.add_value_s;
      mine[4] = entries;
      auto all = co_await allgather_numbers<double>(channel, std::move(mine), kFirstTag + 64);
      if (!all) co_return std::unexpected(all.error());
      Result<Measured> slowest = slowest_of(*all);
      if (!slowest) co_return std::unexpected(slowest.error());
      if (slowest->latency_s > 0) speeds.latency_s = slowest->latency_s;
      if (slowest->byte_s > 0) speeds.byte_s = slowest->byte_s;
      if (slowest->add_entry_s > 0) speeds.add_entry_s = slowest->add_entry_s;
      if (slowest->add_value_s > 0) speeds.add_value_s = slowest->add_value_s;
      entries = slowest->entries;
    }
    co_return make_candidates(speeds, entries, channel.size());
  }

  static Result<Measured> slowest_of(const std::vector<std::vector<double>>& all) {
    Measured most;
    for (const std::vector<double>& one : all) {
      if (one.size() != kMeasurements ||
          !std::ranges::all_of(one, [](double number) { return number >= 0 && number < 1e18; })) {
        return fail(ErrorCode::kMalformed, "auto: a rank's measurements are none");
      }
      most.latency_s = std::max(most.latency_s, one[0]);
      most.byte_s = std::max(most.byte_s, one[1]);
      most.add_entry_s = std::max(most.add_entry_s, one[2]);
      most.add_value_s = std::max(most.add_value_s, one[3]);
      most.entries += one[4] / static_cast<double>(all.size());
    }
    return most;
  }

  /// Errors   those of the best algorithm, where none can be made of these settings.
  Status make_candidates(const MachineSpeeds& speeds, double entries, uint32_t ranks) {
    const auto k = std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(entries)), 1, settings_.dimension);
    const SumShape shape{
        .dimension = settings_.dimension, .k = k, .ranks = ranks, .value_bytes = static_cast<uint32_t>(sizeof(T))};
    const std::vector<PlannedCost> ranking = rank_algorithms(shape, speeds, Wanted::kExactSum);
    Status status;
    for (const PlannedCost& one : ranking) {
      if (candidates_.size() == kCandidatesMax || one.total_s() > kWithin * ranking.front().total_s()) break;
      auto made = make_allreduce<T>(one.info.id, settings_);
      if (!made) {
        if (status) status = std::unexpected(made.error());
        continue;
      }
      Candidate& candidate = candidates_.emplace_back();
      candidate.info = &algorithm_info(one.info.id);
      candidate.allreduce = std::move(*made);
    }
    return candidates_.empty() ? status : Status{};
  }

  Task<Status> settle(Channel& channel) {
    std::vector<double> times;
    for (const Candidate& one : candidates_) times.push_back(one.best_s);
    auto all = co_await allgather_numbers<double>(channel, std::move(times), kFirstTag + 512);
    if (!all) co_return std::unexpected(all.error());
    std::vector<double> slowest(candidates_.size(), 0.0);
    for (const std::vector<double>& one : *all) {
      if (one.size() != slowest.size()) co_return fail(ErrorCode::kMalformed, "auto: a rank tried out something else");
      for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], one[i]);
    }
    chosen_ = static_cast<size_t>(std::ranges::min_element(slowest) - slowest.begin());
    why_ = text_of(slowest);
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (i != *chosen_) candidates_[i].allreduce.reset();
    }
    co_return Status{};
  }

  /// "ssar_split_allgather (12.1 ms; dense_ring 88.0 ms)"
  std::string text_of(const std::vector<double>& times) const {
    const auto ms = [&times](size_t at) {
      char text[32];
      std::snprintf(text, sizeof(text), "%.3g ms", 1e3 * times[at]);
      return std::string(text);
    };
    std::string text = std::string(candidates_[*chosen_].info->name) + " (" + ms(*chosen_);
    for (size_t i = 0; i < times.size(); ++i) {
      if (i != *chosen_) text.append("; ").append(candidates_[i].info->name).append(" ").append(ms(i));
    }
    return text + ")";
  }

  AllreduceSettings<T> settings_;
  std::vector<Candidate> candidates_;
  std::optional<size_t> chosen_;
  std::string why_;
  uint64_t step_ = 0;
};

}  // namespace

AlgorithmEntry automatic_entry() {
  return entry_of<Automatic>({.id = AlgorithmId::kAuto,
                              .name = "auto",
                              .source = "the papers' cost models, and trying out",
                              .result = ResultKind::kExactSum,
                              .chooses = true});
}

}  // namespace millrace::peer
