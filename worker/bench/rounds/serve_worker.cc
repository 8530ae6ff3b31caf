#include "worker/bench/rounds/serve_worker.h"

#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <variant>

#include "kernels/codec/codec.h"
#include "millrace/millrace.h"
#include "protocol/job/layout.h"
#include "worker/bench/rounds/bench_worker.h"
#include "worker/bench/rounds/serve_input.h"
#include "worker/bench/rounds/serve_keys.h"
#include "worker/bench/rounds/serve_oracle.h"
#include "worker/bench/rounds/serve_racks.h"
#include "worker/bench/rounds/serve_switch.h"
#include "worker/config/option_access.h"

namespace millrace::bench {

using program::ExitCode;

namespace {

// Up to here the update is added to an array of weights, as training would; beyond, it is handed out as a stream.
constexpr uint64_t kWeightsMax = uint64_t{1} << 28;
// Of a weight, in the round that is checked: -0 + x has other bits for every x that an update carries, 0 too.
constexpr float kUntouched = -0.0f;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr std::chrono::seconds kServeWorkerTimeout{120};
// As long as a job may ask for: on a busy machine an exact step is to be late, not cut by an older threshold.
constexpr std::chrono::seconds kExchangeTimeout{60};

/// A bare count of 1 would read as a density.
uint64_t reselected(const ServeWorkerSetup& setup) { return std::max<uint64_t>(setup.k, 2); }

JobConfig serve_worker_job(const ServeWorkerSetup& setup) {
  const Codec codec = OptionAccess::codec_of(codec_from_text(setup.codec).value());
  return {.name = setup.job,
          .workers = setup.workers,
          .workers_min = std::max(1U, setup.apply_after_acks),
          .select = Selection::all(),
          .reselect = Reselect::top_k(Amount::count(reselected(setup)), setup.threshold_period),
          .codec_up = codec,
          .codec_down = codec,
          .guarantees = {.audit = setup.audit, .apply_after_acks = setup.apply_after_acks},
          .liveness = {.dead_after = kServeWorkerTimeout, .exchange_timeout = kExchangeTimeout},
          .layout = {.parts_per_shard = setup.parts_per_shard},
          .seed = setup.seed,
          .path = setup.path,
          .grid = setup.grid,
          .recipe = "program=bench-serve rounds=" + std::to_string(setup.rounds)};
}

WorkerConfig serve_worker_config(const ServeWorkerSetup& setup, uint32_t worker) {
  const WorkerConfig config{
      .worker = worker, .shards = setup.shards, .rack = setup.rack, .switch_key_file = setup.switch_key_file};
  return with_serve_keys(config, setup.keys);
}

/// Returns the job in the oracle's form; the library computes the layout from these settings.
ServeJob oracle_job(const ServeWorkerSetup& setup) {
  protocol::JobSpec spec;
  spec.tensors = {{.name = "w", .dimension = setup.n}};
  spec.select.selection = SelectionId::kNone;
  spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = reselected(setup)};
  spec.parts_per_shard = setup.parts_per_shard;
  ServeJob job;
  job.n = setup.n;
  job.pushed = setup.k;
  job.k = reselected(setup);
  job.seed = setup.seed;
  job.workers = setup.workers;
  job.threshold_period = setup.threshold_period;
  for (const auto& part : protocol::plan_layout(spec, static_cast<uint32_t>(setup.shards.size())).parts)
    job.parts.push_back({part.shard, part.begin, part.end});
  job.codec = codec_from_text(setup.codec).value();
  job.error_max = setup.error_max;
  return job;
}

class ServeWorker {
 public:
  ServeWorker(const ServeWorkerSetup& setup, uint32_t worker, ServeShared& shared)
      : setup_(setup),
        worker_(worker),
        shared_(shared),
        session_(Session::connect(serve_worker_job(setup), serve_worker_config(setup, worker),
                                  {{.name = "w", .dimension = setup.n}})) {
    if (setup.n > kWeightsMax) return;
    // Aligned to huge pages and advised so, as tensor allocators do: the update touches nearly every page of it.
    const size_t bytes = (setup.n * sizeof(float) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    memory_.reset(std::aligned_alloc(kHugePageBytes, bytes));
    if (!memory_) throw std::bad_alloc();
    ::madvise(memory_.get(), bytes, MADV_HUGEPAGE);
    weights_ = {static_cast<float*>(memory_.get()), setup.n};
    std::fill(weights_.begin(), weights_.end(), 0.0f);
    session_->attach_weights(0, weights_, 1.0f, ApplyWhen::kOnArrival);
  }

  void run() {
    Stats before;
    for (uint32_t round = 0; round < setup_.rounds; ++round) {
      if (round == setup_.first_measured) {
        before = session_->stats();
        shard_bytes_ = bytes_at_shard();
      }
      const auto input = serve_input(setup_.n, setup_.k, setup_.seed, worker_, round);
      const bool check = worker_ == 0 && round == setup_.checked_round;
      if (check) std::fill(weights_.begin(), weights_.end(), kUntouched);
      shared_.meet();
      shared_.start_ns(worker_, round) = monotonic_now_ns();
      const uint64_t step = session_->push_sparse(0, input.indices, input.values);
      const auto update = session_->await(0, step);
      shared_.end_ns(worker_, round) = monotonic_now_ns();
      // A worker that has finished waits: the later work is not of the round, and would take the cores from the workers
      // still in it.
      shared_.meet();
      // Rounds are independent: takes out the entries that the update omitted, so that the next round does not push
      // them.
      session_->take_residual(0);
      if (check) check_round(update);
    }
    if (worker_ == 0) shared_.report(worker_).bytes_into_shard = bytes_at_shard() - shard_bytes_;
    // No worker leaves before this request: the shard's counters end with the job.
    shared_.meet();
    const Stats after = session_->stats();
    shared_.report(worker_).bytes_up = after.bytes_up - before.bytes_up;
    shared_.report(worker_).bytes_down = after.bytes_down - before.bytes_down;
    session_->finish();
    if (after.audit.imbalance == 0) return;
    shared_.report(worker_).check = -1;
    set_failure(shared_.report(worker_).failure, "audit: mismatch of this worker's account");
  }

 private:
  /// Called between rounds, when only occasional requests are in flight. A shard's counts of its datagrams are some 100
  /// ms old.
  uint64_t bytes_at_shard() const {
    if (worker_ != 0 || setup_.shard_status.empty()) return 0;
    constexpr int kReportIsNewMs = 300;
    ::poll(nullptr, 0, kReportIsNewMs);
    return datagram_bytes(setup_.shard_status).value_or(0);
  }

  /// Returns the entries of the round's update: those that a quantizer made 0 as well.
  Stream received_entries(const TensorUpdate& update) const {
    Stream received = Stream::empty(setup_.n);
    for (size_t index = 0; index < weights_.size(); ++index) {
      if (std::bit_cast<uint32_t>(weights_[index]) == std::bit_cast<uint32_t>(kUntouched)) continue;
      received.indices.push_back(static_cast<uint32_t>(index));
      received.values.push_back(weights_[index]);
    }
    for (const auto& piece : update.pieces) {
      for (const uint32_t index : piece.indices) received.indices.push_back(static_cast<uint32_t>(piece.begin + index));
      received.values.insert(received.values.end(), piece.values.begin(), piece.values.end());
    }
    return received;
  }

  void check_round(const TensorUpdate& update) {
    const Stream received = received_entries(update);
    const bool by_switch = std::holds_alternative<SwitchPath>(setup_.path);
    const ServeJob job = oracle_job(setup_);
    const uint32_t round = setup_.checked_round;
    const auto verdict = setup_.rack_share > 0
                             ? judge_selected_update(job, setup_.racks, setup_.rack_share, round, received.view())
                         : by_switch ? judge_switch_update(job, round, received.view())
                                     : judge_update(job, round, received.view());
    auto& report = shared_.report(worker_);
    report.checked_count = received.count();
    report.relative_error = verdict.relative_error;
    report.check = verdict.agrees ? 1 : -1;
    if (!verdict.agrees) set_failure(report.failure, "the update differs from the oracle's: " + verdict.reason);
  }

  const ServeWorkerSetup& setup_;
  uint32_t worker_;
  ServeShared& shared_;
  uint64_t shard_bytes_ = 0;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::span<float> weights_;
  std::unique_ptr<Session> session_;
};

}  // namespace

Status check_serve_job(const ServeWorkerSetup& setup) {
  if (const Status known = check_codec(setup.codec); !known) return known;
  if (Status valid = check_bench_job(serve_worker_job(setup), serve_worker_config(setup, 0),
                                     {{.name = "w", .dimension = setup.n}});
      !valid)
    return valid;
  if (setup.error_max > 0) return {};
  return check_lossless(setup.codec, "the row lossless");
}

int run_serve_worker(const ServeWorkerSetup& setup, uint32_t worker, ServeShared& shared) {
  ServeWorkerReport& report = shared.report(worker);
  return run_bench_worker(report.failure, [&]() -> std::function<ExitCode()> {
    auto running = std::make_shared<ServeWorker>(setup, worker, shared);
    return [running, &report] {
      running->run();
      return report.check == -1 ? ExitCode::kInternal : ExitCode::kOk;
    };
  });
}

}  // namespace millrace::bench
