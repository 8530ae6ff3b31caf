#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "worker/bench/kernels/measure.h"
#include "worker/bench/peers/peer_bench.h"
#include "worker/peer/group/group_gather.h"
#include "worker/peer/group/layer_buckets.h"

/// Communication hidden behind computation: the group makes progress on a thread of its own, the computation calls
/// nothing of it.
namespace millrace::bench {
namespace {

double peer_overlap_ms_since(TimeNs begin) { return static_cast<double>(monotonic_now_ns() - begin) * 1e-6; }

/// Computes on registers, so that it uses cores and no memory.
double arithmetic(uint64_t rounds) {
  std::array<double, 8> lanes{};
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<double>(i) + 0.5;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (double& lane : lanes) lane = lane * 0.999999 + 1e-3;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// Returns the layers of `values` values: 32 alike, or as many as there are values.
std::vector<uint64_t> layers_of(uint64_t values) {
  constexpr uint64_t kLayers = 32;
  const uint64_t count = std::min(kLayers, values);
  std::vector<uint64_t> layers;
  for (uint64_t at = 0; at < count; ++at) layers.push_back(values * (at + 1) / count - values * at / count);
  return layers;
}

using Steps = std::vector<std::function<Status()>>;

class Overlap {
 public:
  Overlap(peer::MpiJob& job, peer::Communicator& communicator, const PeerBenchOptions& options)
      : job_(job),
        options_(options),
        settings_(settings_of(options)),
        group_(communicator, {.silence_ms_max = options.silence_ms_max}, peer::Progress::kByThread) {}

  Result<nlohmann::json> run(const SayProgress& say) {
    const Result<std::vector<peer::AlgorithmId>> ids = algorithms_of(options_);
    if (!ids) return std::unexpected(ids.error());
    own_ = peer_input(options_.inputs, job_.rank(), job_.size());
    nlohmann::json rows = nlohmann::json::array();
    for (const peer::AlgorithmId id : *ids) {
      say(std::string(peer::algorithm_info(id).name));
      auto row = row_of(id);
      if (!row) return std::unexpected(row.error());
      rows.push_back(std::move(*row));
    }
    for (const peer::AlgorithmId id : *ids) {
      if (!peer::algorithm_info(id).dense_only) continue;
      say(std::string(peer::algorithm_info(id).name) + " in buckets");
      auto row = row_of_buckets(id);
      if (!row) return std::unexpected(row.error());
      rows.push_back(std::move(*row));
    }
    nlohmann::json result;
    result["bench"] = "peers_overlap";
    result["ranks"] = job_.size();
    result["n"] = options_.inputs.n;
    result["entries_per_rank"] = own_.view.count();
    result["compute"] = *options_.overlap == ComputeWhere::kCores ? "cores" : "elsewhere";
    result["repeats"] = options_.repeats;
    result["rows"] = std::move(rows);
    return result;
  }

 private:
  /// Returns the time of the slowest rank, from a barrier on.
  Result<double> ms_of(const std::function<Status()>& step) {
    if (Status status = peer::barrier(group_); !status) return std::unexpected(status.error());
    const TimeNs begin = monotonic_now_ns();
    if (Status status = step(); !status) return std::unexpected(status.error());
    const auto all = peer::gather<double>(group_, "overlap", {peer_overlap_ms_since(begin)});
    if (!all) return std::unexpected(all.error());
    return std::ranges::max(*all);
  }

  /// Returns the median of each step, over repeats of all of them in turn: a drift meanwhile affects all alike.
  Result<std::vector<double>> medians_of(const Steps& steps, uint32_t repeats) {
    std::vector<std::vector<double>> ms(steps.size());
    for (uint32_t i = 0; i < options_.warmup + repeats; ++i) {
      for (size_t at = 0; at < steps.size(); ++at) {
        const Result<double> took = ms_of(steps[at]);
        if (!took) return std::unexpected(took.error());
        if (i >= options_.warmup) ms[at].push_back(*took);
      }
    }
    std::vector<double> medians;
    for (std::vector<double>& each : ms) medians.push_back(median(std::move(each)));
    return medians;
  }

  Result<double> median_of(const std::function<Status()>& step) {
    const auto one = medians_of({step}, options_.repeats);
    if (!one) return std::unexpected(one.error());
    return one->front();
  }

  /// Short steps are repeated more often, for as long as a few long ones take: one that was disturbed is seen less.
  uint32_t repeats_of(double ms) const {
    constexpr double kRowMs = 2'000;
    constexpr double kRepeatsMax = 50;
    return std::max(options_.repeats, static_cast<uint32_t>(std::clamp(kRowMs / (3 * ms), 1.0, kRepeatsMax)));
  }

  void compute(double ms) {
    if (*options_.overlap == ComputeWhere::kElsewhere) {
      const auto ns = static_cast<TimeNs>(ms * 1e6);
      const timespec time{.tv_sec = ns / kNsPerS, .tv_nsec = ns % kNsPerS};
      ppoll(nullptr, 0, &time, nullptr);
      return;
    }
    seen_ = arithmetic(static_cast<uint64_t>(ms * rounds_per_ms_));
  }

  /// How much this rank computes in a millisecond, while all others do; tried out on as much as `ms` take, or 50 ms.
  Status calibrate(double ms) {
    constexpr double kSampleMsMax = 50;
    constexpr int kTries = 3;  // the first one guesses
    const double sample_ms = std::min(ms, kSampleMsMax);
    rounds_per_ms_ = 1e5;
    for (int i = 0; i < kTries; ++i) {
      const Result<double> took = median_of([&] {
        compute(sample_ms);
        return Status{};
      });
      if (!took) return std::unexpected(took.error());
      rounds_per_ms_ *= sample_ms / *took;
    }
    return {};
  }

  Result<nlohmann::json> row_of(peer::AlgorithmId id) {
    auto allreduce = peer::make_allreduce(id, settings_);
    if (!allreduce) return std::unexpected(allreduce.error());
    double to_compute = 0;
    const auto step = [&]() -> Status {
      auto pending = group_.start_allreduce(**allreduce, settings_, own_);
      if (!pending) return std::unexpected(pending.error());
      if (to_compute > 0) compute(to_compute);
      const auto reduced = pending->wait();
      if (!reduced) return std::unexpected(reduced.error());
      return {};
    };
    const auto alone = [&] {
      to_compute = 0;
      return step();
    };
    if (Status status = run_until_chosen(**allreduce, step); !status) return std::unexpected(status.error());
    const Result<double> estimate = median_of(alone);
    if (!estimate) return std::unexpected(estimate.error());
    if (Status status = calibrate(*estimate); !status) return std::unexpected(status.error());
    const auto computation = [&] {
      compute(*estimate);
      return Status{};
    };
    const auto both = [&] {
      to_compute = *estimate;
      return step();
    };
    const auto ms = medians_of({alone, computation, both}, repeats_of(*estimate));
    if (!ms) return std::unexpected(ms.error());
    nlohmann::json row;
    row["algorithm"] = peer::algorithm_info(id).name;
    row["repeats"] = repeats_of(*estimate);
    row["communication_ms"] = (*ms)[0];
    row["computation_ms"] = (*ms)[1];
    row["step_ms"] = (*ms)[2];
    row["step_over_longer"] = (*ms)[2] / std::max((*ms)[0], (*ms)[1]);
    row["step_over_sum"] = (*ms)[2] / ((*ms)[0] + (*ms)[1]);
    return row;
  }

  /// DenseOvlp: a gradient of layers alike, which are computed one after the other, in as long as one dense allreduce
  /// takes. Its buckets are summed meanwhile, or all of it in one allreduce at the end.
  Result<nlohmann::json> row_of_buckets(peer::AlgorithmId id) {
    peer::DenseBucketsOptions split;
    split.layers = layers_of(options_.inputs.n);
    split.bucket_bytes = options_.bucket_bytes;
    split.algorithm = id;
    auto buckets = peer::DenseBuckets::make(group_, split);
    if (!buckets) return std::unexpected(buckets.error());
    split.bucket_bytes = std::numeric_limits<uint64_t>::max();
    auto whole = peer::DenseBuckets::make(group_, split);
    if (!whole) return std::unexpected(whole.error());
    const Stream gradient = to_dense(own_.view);
    double to_compute = 0;
    const auto step = [&](peer::DenseBuckets& sums) -> Status {
      size_t begin = 0;
      for (size_t layer = 0; layer < split.layers.size(); ++layer) {
        if (to_compute > 0) compute(to_compute / static_cast<double>(split.layers.size()));
        const auto values = std::span<const float>(gradient.values).subspan(begin, split.layers[layer]);
        if (Status status = sums.ready(layer, values); !status) return status;
        begin += values.size();
      }
      return sums.wait();
    };
    const Result<double> estimate = median_of([&] { return step(**whole); });
    if (!estimate) return std::unexpected(estimate.error());
    if (Status status = calibrate(*estimate); !status) return std::unexpected(status.error());
    const double each = *estimate / static_cast<double>(split.layers.size());
    const auto alone = [&] {
      to_compute = 0;
      return step(**whole);
    };
    const auto computation = [&] {
      for (size_t layer = 0; layer < split.layers.size(); ++layer) compute(each);
      return Status{};
    };
    const auto computed_before = [&] {
      to_compute = *estimate;
      return step(**whole);
    };
    const auto overlapped = [&] {
      to_compute = *estimate;
      return step(**buckets);
    };
    const auto ms = medians_of({alone, computation, computed_before, overlapped}, repeats_of(*estimate));
    if (!ms) return std::unexpected(ms.error());
    nlohmann::json row;
    row["algorithm"] = std::string(peer::algorithm_info(id).name) + " in buckets";
    row["layers"] = split.layers.size();
    row["buckets"] = (*buckets)->plan().buckets();
    row["repeats"] = repeats_of(*estimate);
    row["communication_ms"] = (*ms)[0];
    row["computation_ms"] = (*ms)[1];
    row["at_end_ms"] = (*ms)[2];
    row["step_ms"] = (*ms)[3];
    row["step_over_longer"] = (*ms)[3] / std::max((*ms)[0], (*ms)[1]);
    row["step_over_at_end"] = (*ms)[3] / (*ms)[2];
    return row;
  }

  peer::MpiJob& job_;
  const PeerBenchOptions& options_;
  peer::AllreduceSettings settings_;
  peer::PeerGroup group_;
  SharedStream own_;
  double rounds_per_ms_ = 0;
  volatile double seen_ = 0;  ///< so that the compiler cannot omit the computation
};

}  // namespace

Result<nlohmann::json> bench_overlap(peer::MpiJob& job, peer::Communicator& communicator,
                                     const PeerBenchOptions& options, const SayProgress& say) {
  if (job.threads() < peer::MpiThreads::kSerialized) {
    return fail(ErrorCode::kInvalidArgument, "--overlap needs --mpi-threads serialized or multiple");
  }
  return Overlap(job, communicator, options).run(say);
}

}  // namespace millrace::bench
