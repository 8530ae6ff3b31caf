#include "worker/bench/recover/recover_worker.h"

#include <chrono>
#include <functional>
#include <memory>

#include "millrace/millrace.h"
#include "protocol/job/layout.h"
#include "worker/bench/rounds/bench_worker.h"
#include "worker/config/option_access.h"

namespace millrace::bench {
namespace {

// A busy machine must not end a job whose shard only restarts late: the benchmark has a limit of its own. It is longer
// than four of the longest heartbeats that the benchmark takes, as shard_silence must be.
constexpr std::chrono::seconds kRecoverWorkerTimeout{300};

JobConfig recover_worker_job(const RecoverSetup& setup) {
  const Codec codec = OptionAccess::codec_of(codec_from_text(setup.codec).value());
  return {.name = setup.job,
          .workers = setup.workers,
          .select = Selection::all(),
          .codec_up = codec,
          .codec_down = codec,
          .liveness = {.heartbeat = setup.heartbeat},
          .layout = {.parts_per_shard = setup.parts_per_shard},
          .recipe = "program=bench-recover"};
}

WorkerConfig recover_worker_config(const RecoverSetup& setup, uint32_t worker) {
  return {.worker = worker, .shards = setup.shards, .shard_silence = kRecoverWorkerTimeout, .returns = true};
}

TensorOptions bare_tensor(const RecoverSetup& setup) {
  TensorOptions tensor;
  tensor.name = "w";
  tensor.dimension = setup.marks.n;
  return tensor;
}

TensorOptions tensor_options(const RecoverSetup& setup, std::span<float> weights) {
  TensorOptions tensor = bare_tensor(setup);
  tensor.weights = Weights(weights, 1.0F);
  return tensor;
}

class RecoverWorker {
 public:
  RecoverWorker(const RecoverSetup& setup, uint32_t worker, uint32_t serial, RecoverShared& shared)
      : setup_(setup), serial_(serial), shared_(shared), own_(shared.process(serial)), weights_(setup.marks.n, 0.0f) {
    session_ = Session::connect(recover_worker_job(setup), recover_worker_config(setup, worker),
                                {tensor_options(setup, weights_)});
    own_.has_weights_ns = monotonic_now_ns();
  }

  void run() {
    while (session_->steps_applied(0) < shared_.end_step()) {
      if (own_.leave) return session_.reset();
      push(own_.pushes);
    }
    session_->finish();
    judge();
  }

 private:
  void push(uint32_t number) {
    if (number == setup_.marks.pushes_max)
      throw JobError(JobErrorCode::kLimitExceeded, "more rounds than this dimension can distinguish");
    RecoverRound& round = shared_.round(serial_, number);
    round.step = session_->steps_applied(0);
    const Stream input = setup_.marks.pushed(serial_, number, round.step);
    own_.pushes = number + 1;
    round.start_ns = monotonic_now_ns();
    const uint64_t pushed = session_->push_sparse(0, input.indices, input.values);
    session_->await(0, pushed);
    round.end_ns = monotonic_now_ns();
    own_.answered = number + 1;
    if (own_.first_counted_ns == 0) look_for_first();
  }

  void look_for_first() {
    for (size_t part = 0; part < setup_.marks.parts.size(); ++part) {
      if (setup_.marks.counted(weights_, part, serial_, 0) == 0) return;
    }
    own_.first_counted_ns = monotonic_now_ns();
  }

  // Every step below the end has a push of all processes: a process that stays has begun its last one. A process that
  // left has nothing in flight.
  void judge() {
    std::vector<std::vector<uint64_t>> steps(setup_.marks.serials);
    for (uint32_t serial = 0; serial < setup_.marks.serials; ++serial) {
      const uint32_t begun = shared_.process(serial).pushes;
      for (uint32_t push = 0; push < begun; ++push) steps[serial].push_back(shared_.round(serial, push).step);
    }
    own_.verdict = judge_recovery(setup_.marks, weights_, steps);
  }

  const RecoverSetup& setup_;
  uint32_t serial_;
  RecoverShared& shared_;
  RecoverProcess& own_;
  std::vector<float> weights_;
  std::unique_ptr<Session> session_;
};

}  // namespace

std::vector<std::pair<uint64_t, uint64_t>> recover_parts(const RecoverSetup& setup) {
  protocol::JobSpec spec;
  spec.tensors = {{.name = "w", .dimension = setup.marks.n}};
  spec.select.selection = SelectionId::kNone;
  spec.parts_per_shard = setup.parts_per_shard;
  std::vector<std::pair<uint64_t, uint64_t>> parts;
  for (const auto& part : protocol::plan_layout(spec, static_cast<uint32_t>(setup.shards.size())).parts)
    parts.emplace_back(part.begin, part.end);
  return parts;
}

Status check_recover_job(const RecoverSetup& setup) {
  if (const Status known = check_codec(setup.codec); !known) return known;
  if (Status valid = check_bench_job(recover_worker_job(setup), recover_worker_config(setup, 0), {bare_tensor(setup)});
      !valid)
    return valid;
  return check_lossless(setup.codec, "every weight");
}

int run_recover_worker(const RecoverSetup& setup, uint32_t worker, uint32_t serial, RecoverShared& shared) {
  return run_bench_worker(shared.process(serial).failure, [&]() -> std::function<program::ExitCode()> {
    auto running = std::make_shared<RecoverWorker>(setup, worker, serial, shared);
    return [running] {
      running->run();
      return program::ExitCode::kOk;
    };
  });
}

}  // namespace millrace::bench
