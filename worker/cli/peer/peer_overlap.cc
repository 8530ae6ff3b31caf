#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "worker/cli/bench/measure.h"
#include "worker/cli/peer/gather.h"
#include "worker/cli/peer/peer_bench.h"
#include "worker/peer/dense_buckets.h"

/// Communication hidden behind computation: the group makes progress on a thread of its own, the computation calls nothing of it.
namespace millrace::cli {
namespace {

double ms_since(TimeNs begin) { return static_cast<double>(monotonic_now_ns() - begin) * 1e-6; }

/// Arithmetic on registers, so that what it takes is cores and not memory.
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

/// Of so many values, 32 layers alike, or as many as there are values.
std::vector<uint64_t> layers_of(uint64_t values) {
  constexpr uint64_t kLayers = 32;
  const uint64_t count = std::min(kLayers, values);
  std::vector<uint64_t> layers;
  for (uint64_t at = 0; at < count; ++at) layers.push_back(values * (at + 1) / count - values * at / count);
  return layers;
}

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
  /// The median over the repeats of what the slowest rank takes, from a barrier on.
  template <typename Step>
  Result<double> median_of(const std::string& what, Step step) {
    std::vector<double> ms;
    for (uint32_t i = 0; i < options_.warmup + options_.repeats; ++i) {
      if (Status status = barrier(group_); !status) return std::unexpected(status.error());
      const TimeNs begin = monotonic_now_ns();
      if (Status status = step(); !status) return std::unexpected(status.error());
      const auto all = gather<double>(group_, what, {ms_since(begin)});
      if (!all) return std::unexpected(all.error());
      if (i >= options_.warmup) ms.push_back(std::ranges::max(*all));
    }
    return median(std::move(ms));
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
      const Result<double> took = median_of("calibration", [&] {
        compute(sample_ms);
        return Status{};
      });
      if (!took) return std::unexpected(took.error());
      rounds_per_ms_ *= sample_ms / *took;
    }
    return {};
  }

  Result<nlohmann::json> row_of(peer::AlgorithmId id) {
    auto allreduce = peer::make_allreduce<float>(id, settings_);
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
    const Result<double> communication = median_of("communication", step);
    if (!communication) return std::unexpected(communication.error());
    if (Status status = calibrate(*communication); !status) return std::unexpected(status.error());
    to_compute = *communication;
    const Result<double> computation = median_of("computation", [&] {
      compute(to_compute);
      return Status{};
    });
    if (!computation) return std::unexpected(computation.error());
    const Result<double> both = median_of("both", step);
    if (!both) return std::unexpected(both.error());
    nlohmann::json row;
    row["algorithm"] = peer::algorithm_info(id).name;
    row["communication_ms"] = *communication;
    row["computation_ms"] = *computation;
    row["step_ms"] = *both;
    row["step_over_longer"] = *both / std::max(*communication, *computation);
    row["step_over_sum"] = *both / (*communication + *computation);
    return row;
  }

  /// DenseOvlp: a gradient of layers alike, which are computed one after the other, in as long as one dense allreduce takes; its
  /// buckets are summed meanwhile, or all of it in one allreduce at the end.
  Result<nlohmann::json> row_of_buckets(peer::AlgorithmId id) {
    peer::DenseBucketsOptions split;
    split.layers = layers_of(options_.inputs.n);
    split.bucket_bytes = options_.bucket_bytes;
    split.algorithm = id;
    auto buckets = peer::DenseBuckets<float>::make(group_, split);
    if (!buckets) return std::unexpected(buckets.error());
    split.bucket_bytes = std::numeric_limits<uint64_t>::max();
    auto whole = peer::DenseBuckets<float>::make(group_, split);
    if (!whole) return std::unexpected(whole.error());
    const Stream<float> gradient = to_dense(own_.view);
    double to_compute = 0;
    const auto step = [&](peer::DenseBuckets<float>& sums) -> Status {
      size_t begin = 0;
      for (size_t layer = 0; layer < split.layers.size(); ++layer) {
        if (to_compute > 0) compute(to_compute / static_cast<double>(split.layers.size()));
        const auto values = std::span<const float>(gradient.values).subspan(begin, split.layers[layer]);
        if (Status status = sums.ready(layer, values); !status) return status;
        begin += values.size();
      }
      return sums.wait();
    };
    const Result<double> communication = median_of("communication", [&] { return step(**whole); });
    if (!communication) return std::unexpected(communication.error());
    if (Status status = calibrate(*communication); !status) return std::unexpected(status.error());
    to_compute = *communication;
    const Result<double> computation = median_of("computation", [&] {
      for (size_t layer = 0; layer < split.layers.size(); ++layer) {
        compute(to_compute / static_cast<double>(split.layers.size()));
      }
      return Status{};
    });
    if (!computation) return std::unexpected(computation.error());
    const Result<double> at_end = median_of("at the end", [&] { return step(**whole); });
    if (!at_end) return std::unexpected(at_end.error());
    const Result<double> overlapped = median_of("in buckets", [&] { return step(**buckets); });
    if (!overlapped) return std::unexpected(overlapped.error());
    nlohmann::json row;
    row["algorithm"] = std::string(peer::algorithm_info(id).name) + " in buckets";
    row["layers"] = split.layers.size();
    row["buckets"] = (*buckets)->plan().buckets();
    row["communication_ms"] = *communication;
    row["computation_ms"] = *computation;
    row["at_end_ms"] = *at_end;
    row["step_ms"] = *overlapped;
    row["step_over_longer"] = *overlapped / std::max(*communication, *computation);
    row["step_over_at_end"] = *overlapped / *at_end;
    return row;
  }

  peer::MpiJob& job_;
  const PeerBenchOptions& options_;
  peer::AllreduceSettings<float> settings_;
  peer::PeerGroup group_;
  HeldStream<float> own_;
  double rounds_per_ms_ = 0;
  volatile double seen_ = 0;  ///< so that what is computed cannot be left out
};

}  // namespace

Result<nlohmann::json> bench_overlap(peer::MpiJob& job, peer::Communicator& communicator,
                                     const PeerBenchOptions& options, const SayProgress& say) {
  if (job.threads() < peer::MpiThreads::kSerialized) {
    return fail(ErrorCode::kInvalidArgument, "--overlap needs --mpi-threads serialized or multiple");
  }
  return Overlap(job, communicator, options).run(say);
}

}  // namespace millrace::cli
