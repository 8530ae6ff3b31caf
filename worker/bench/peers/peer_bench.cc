#include "worker/bench/peers/peer_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/base/random.h"
#include "worker/bench/kernels/measure.h"
#include "worker/bench/peers/peer_check.h"
#include "worker/peer/group/group_gather.h"

namespace millrace::bench {

using peer::barrier;
using peer::gather;

namespace {

constexpr const char* kDenseName = "openmpi_dense";

double peer_bench_ms_since(TimeNs begin) { return static_cast<double>(monotonic_now_ns() - begin) * 1e-6; }

/// Holds one algorithm, or MPI's own, and the measurements of this rank.
struct Contender {
  const peer::AlgorithmInfo* info = nullptr;  ///< null: MPI's own
  std::unique_ptr<peer::Allreduce> allreduce;
  std::vector<double> ms;
  std::vector<uint64_t> bytes;
  std::vector<uint64_t> messages;
  uint64_t entries = 0;
  bool correct = true;

  std::string name() const { return info == nullptr ? kDenseName : std::string(info->name); }
};

/// Of all ranks: that of the slowest or busiest one, repeat by repeat.
template <typename N>
std::vector<N> largest_of_ranks(std::span<const N> all, size_t repeats) {
  std::vector<N> most(all.begin(), all.begin() + static_cast<ptrdiff_t>(repeats));
  for (size_t i = 0; i < all.size(); ++i) most[i % repeats] = std::max(most[i % repeats], all[i]);
  return most;
}

class Bench {
 public:
  Bench(peer::MpiJob& job, peer::Communicator& communicator, const PeerBenchOptions& options, const SayProgress& say)
      : job_(job),
        options_(options),
        say_(say),
        settings_(settings_of(options)),
        group_(communicator, {.silence_ms_max = options.silence_ms_max}, peer::Progress::kByCaller) {}

  Result<nlohmann::json> run() {
    if (Status status = prepare(); !status) return std::unexpected(status.error());
    if (Status status = run_all_until_chosen(); !status) return std::unexpected(status.error());
    for (uint32_t round = 0; round < options_.warmup; ++round) {
      if (Status status = one_round(round == 0 ? Checked::kYes : Checked::kNo); !status) {
        return std::unexpected(status.error());
      }
    }
    for (Contender& one : contenders_) one.ms.clear(), one.bytes.clear(), one.messages.clear();
    for (uint32_t round = 0; round < options_.repeats; ++round) {
      say_progress(round);
      if (Status status = one_round(round + 1 == options_.repeats ? Checked::kYes : Checked::kNo); !status) {
        return std::unexpected(status.error());
      }
    }
    return summary();
  }

 private:
  enum class Checked : uint8_t { kNo = 1, kYes = 2 };

  uint32_t rank() const { return job_.rank(); }

  Status prepare() {
    const Result<std::vector<peer::AlgorithmId>> ids = algorithms_of(options_);
    if (!ids) return std::unexpected(ids.error());
    if (options_.dense == DenseRow::kMeasured) contenders_.emplace_back();
    // Lists all that must be the same, before a blocking call that cannot be stopped.
    std::string what = fmt::format("bench n={} count={} shape={} seed={} repeats={}+{} dense={}", options_.inputs.n,
                                   options_.inputs.count, static_cast<int>(options_.inputs.shape), options_.inputs.seed,
                                   options_.warmup, options_.repeats, static_cast<int>(options_.dense));
    for (const peer::AlgorithmId id : *ids) {
      auto made = peer::make_allreduce(id, settings_);
      if (!made) return std::unexpected(made.error());
      what += ", " + peer::description_of(id, settings_);
      contenders_.emplace_back();
      contenders_.back().info = &peer::algorithm_info(id);
      contenders_.back().allreduce = std::move(*made);
    }
    if (auto all = gather<uint32_t>(group_, what, {rank()}); !all) return std::unexpected(all.error());
    say_("making the contributions");
    own_ = peer_input(options_.inputs, rank(), job_.size());
    expected_ = summed_inputs(options_.inputs, job_.size());
    if (options_.dense == DenseRow::kMeasured) own_dense_ = to_dense(own_.view);
    return {};
  }

  Status run_all_until_chosen() {
    for (Contender& one : contenders_) {
      if (one.info == nullptr) continue;
      const auto step = [&] { return run_sparse(one, Checked::kNo); };
      if (Status status = run_until_chosen(*one.allreduce, step); !status) return status;
    }
    return {};
  }

  void say_progress(uint32_t round) {
    constexpr TimeNs kBetween = 5 * kNsPerS;
    const TimeNs now = monotonic_now_ns();
    if (now - said_ < kBetween) return;
    said_ = now;
    say_(fmt::format("round {} of {}", round + 1, options_.repeats));
  }

  /// Runs each twice; the second run counts. So the step before it was its own, as in a job, and left its state in
  /// caches and in the links' token buckets. In another order each round: after some of them idle cores take long
  /// to wake up.
  Status one_round(Checked checked) {
    for (const size_t at : shuffled_contenders()) {
      Contender& one = contenders_[at];
      const auto run = [&](Checked now) { return one.info == nullptr ? run_dense(one, now) : run_sparse(one, now); };
      if (Status status = run(Checked::kNo); !status) return status;
      one.ms.pop_back(), one.bytes.pop_back(), one.messages.pop_back();
      if (Status status = run(checked); !status) return status;
    }
    return {};
  }

  /// The same on all ranks.
  std::vector<size_t> shuffled_contenders() {
    std::vector<size_t> order;
    for (size_t at = 0; at < contenders_.size(); ++at) {
      order.push_back(at);
      std::swap(order[at], order[order_.next_below(at + 1)]);
    }
    return order;
  }

  Status run_dense(Contender& one, Checked checked) {
    dense_ = own_dense_.values;
    if (Status status = barrier(group_); !status) return status;
    const TimeNs begin = monotonic_now_ns();
    if (Status status = job_.sum_dense(dense_); !status) return status;
    one.ms.push_back(peer_bench_ms_since(begin));
    if (Status status = barrier(group_); !status) return status;
    one.bytes.push_back(0);
    one.messages.push_back(0);
    one.entries = dense_.size();
    if (checked == Checked::kNo) return {};
    const StreamView sum{dense_.size(), true, {}, dense_};
    return conclude(one, sum, agrees(sum, expected_, 0));
  }

  Status run_sparse(Contender& one, Checked checked) {
    if (Status status = barrier(group_); !status) return status;
    const peer::Traffic before = group_.traffic();
    const TimeNs begin = monotonic_now_ns();
    auto pending = group_.start_allreduce(*one.allreduce, settings_, own_);
    if (!pending) return std::unexpected(pending.error());
    auto reduced = pending->wait();
    if (!reduced) return std::unexpected(reduced.error());
    one.ms.push_back(peer_bench_ms_since(begin));
    const peer::Traffic after = group_.traffic();
    one.bytes.push_back(after.bytes_sent - before.bytes_sent);
    one.messages.push_back(after.messages_sent - before.messages_sent);
    // A rank that has finished must not take the cores from the others for unmeasured work.
    if (Status status = barrier(group_); !status) return status;
    one.entries = reduced->sum.view.count();
    if (checked == Checked::kNo) return {};
    const Result<bool> right = is_right(*one.info, *reduced);
    if (!right) return std::unexpected(right.error());
    return conclude(one, reduced->sum.view, *right);
  }

  /// Returns whether the sum is right, or, together with the values that the ranks retain, equals their inputs.
  Result<bool> is_right(const peer::AlgorithmInfo& info, const peer::Reduced& reduced) {
    const bool lossy = (options_.codec && is_lossy(*options_.codec)) || options_.quantizer;
    if (info.result == peer::ResultKind::kExactSum && !lossy) return agrees(reduced.sum.view, expected_, 0);
    std::vector<float> kept = residual_after(info, own_.view, reduced);
    if (Status status = job_.sum_dense(kept); !status) return std::unexpected(status.error());
    std::ranges::transform(expected_, kept, kept.begin(), std::minus());
    return agrees(reduced.sum.view, kept, lossy ? kOffMax * static_cast<float>(job_.size() * job_.size()) : 0.0F);
  }

  Status conclude(Contender& one, const StreamView& sum, bool right) {
    const auto all = gather<uint64_t>(group_, "check", {right ? uint64_t{1} : 0, bits_of(sum)});
    if (!all) return std::unexpected(all.error());
    for (size_t i = 0; i < all->size(); i += 2) {
      one.correct = one.correct && (*all)[i] == 1 && (*all)[i + 1] == (*all)[1];
    }
    return {};
  }

  Result<nlohmann::json> row_of(const Contender& one) {
    const auto ms = gather<double>(group_, "times", one.ms);
    if (!ms) return std::unexpected(ms.error());
    std::vector<uint64_t> traffic = one.bytes;
    traffic.insert(traffic.end(), one.messages.begin(), one.messages.end());
    const auto sent = gather<uint64_t>(group_, "traffic", traffic);
    if (!sent) return std::unexpected(sent.error());
    const std::vector<double> slowest = largest_of_ranks<double>(*ms, options_.repeats);
    nlohmann::json row;
    row["algorithm"] = one.name();
    row["result"] =
        one.info == nullptr || one.info->result == peer::ResultKind::kExactSum ? "exact_sum" : "global_topk";
    row["median_ms"] = median(slowest);
    row["min_ms"] = std::ranges::min(slowest);
    row["correct"] = one.correct;
    row["entries"] = one.entries;
    if (one.info != nullptr && one.info->chooses) row["choice"] = one.allreduce->choice();
    if (one.info != nullptr) {
      const std::vector<uint64_t> most = largest_of_ranks<uint64_t>(*sent, 2 * size_t{options_.repeats});
      const auto half = most.begin() + options_.repeats;
      row["bytes_sent_max"] = *std::max_element(most.begin(), half);
      row["messages_sent_max"] = *std::max_element(half, most.end());
    }
    return row;
  }

  Result<nlohmann::json> summary() {
    nlohmann::json rows = nlohmann::json::array();
    for (const Contender& one : contenders_) {
      auto row = row_of(one);
      if (!row) return std::unexpected(row.error());
      if (contenders_[0].info == nullptr) {
        (*row)["over_openmpi_dense"] =
            row->at("median_ms").get<double>() / (rows.empty() ? *row : rows[0]).at("median_ms").get<double>();
      }
      rows.push_back(std::move(*row));
    }
    nlohmann::json result;
    result["bench"] = "peers";
    result["ranks"] = job_.size();
    result["n"] = options_.inputs.n;
    result["entries_per_rank"] = own_.view.count();
    result["distribution"] = input_shape_names()[static_cast<size_t>(options_.inputs.shape) - 1];
    result["codec"] = peer::wire_text(options_.codec);
    result["repeats"] = options_.repeats;
    result["mpi_threads"] = peer::name_of(job_.threads());
    const auto unexpected = gather<uint64_t>(group_, "unexpected", {group_.traffic().messages_unexpected});
    if (!unexpected) return std::unexpected(unexpected.error());
    result["messages_unexpected"] = std::accumulate(unexpected->begin(), unexpected->end(), uint64_t{0});
    result["rows"] = std::move(rows);
    return result;
  }

  /// Tolerance where values were quantized: rounding of f32 sums of values up to 16, for each pair of ranks.
  static constexpr float kOffMax = 16.0F / (1 << 20);

  peer::MpiJob& job_;
  const PeerBenchOptions& options_;
  const SayProgress& say_;
  peer::AllreduceSettings settings_;
  peer::PeerGroup group_;
  std::vector<Contender> contenders_;
  SharedStream own_;
  Stream own_dense_;
  Buffer<float> dense_;
  std::vector<float> expected_;
  RandomSequence order_{RandomKey::from(options_.inputs.seed)};
  TimeNs said_ = 0;
};

}  // namespace

peer::AllreduceSettings settings_of(const PeerBenchOptions& options) {
  peer::AllreduceSettings settings;
  settings.dimension = options.inputs.n;
  settings.k = options.k == 0 ? options.inputs.count : options.k;
  settings.boundaries = options.boundaries;
  settings.wire.contribution = options.codec;
  if (options.codec) settings.wire.sums = peer::lossless_of(*options.codec);
  settings.wire.random = RandomKey::from(options.inputs.seed);
  settings.dense_quantizer = options.quantizer;
  return settings;
}

Result<std::vector<peer::AlgorithmId>> algorithms_of(const PeerBenchOptions& options) {
  std::vector<peer::AlgorithmId> ids;
  for (const std::string& name : options.algorithms) {
    const peer::AlgorithmInfo* info = peer::find_algorithm(name);
    if (info == nullptr) {
      std::string names;
      for (const peer::AlgorithmInfo& one : peer::algorithms()) names.append(" ").append(one.name);
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--algorithm: there is no algorithm '{}'; there are{}", name, names));
    }
    ids.push_back(info->id);
  }
  if (!ids.empty()) return ids;
  for (const peer::AlgorithmInfo& one : peer::algorithms()) ids.push_back(one.id);
  return ids;
}

Status run_until_chosen(const peer::Allreduce& allreduce, const std::function<Status()>& step) {
  constexpr int kStepsMax = 1'024;
  for (int taken = 0; !allreduce.is_settled(); ++taken) {
    if (taken == kStepsMax) {
      return fail(ErrorCode::kInternal, std::string(allreduce.info().name) + " does not come to a choice");
    }
    if (Status status = step(); !status) return status;
  }
  return {};
}

Result<nlohmann::json> bench_peers(peer::MpiJob& job, peer::Communicator& communicator, const PeerBenchOptions& options,
                                   const SayProgress& say) {
  return Bench(job, communicator, options, say).run();
}

}  // namespace millrace::bench
