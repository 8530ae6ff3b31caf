#include "worker/bench/recover/recover.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "worker/bench/recover/recover_worker.h"
#include "worker/launch/child_end.h"
#include "worker/launch/child_process.h"
#include "worker/launch/shard_process.h"
#include "worker/program/interruption.h"
#include "worker/program/scratch_folder.h"

namespace millrace::bench {

using launch::ShardProcess;
using program::ExitCode;
using program::fail_with;
using program::Failure;
using program::Outcome;

namespace {

using nlohmann::json;
using Progress = std::function<void(const std::string&)>;

constexpr int kRecoverLookEveryMs = 1;
constexpr TimeNs kTimeoutNs = 90 * kNsPerS;  ///< for any one thing to happen
constexpr uint64_t kStepsToTheEnd = 20;      ///< so that no process is beyond the end when it is announced

double recover_seconds(TimeNs span) { return static_cast<double>(span) / static_cast<double>(kNsPerS); }
double milliseconds(TimeNs span) { return static_cast<double>(span) / static_cast<double>(kNsPerMs); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double worst(const json& entries, const char* key) {
  double most = 0;
  for (const json& entry : entries) most = std::max(most, entry.at(key).get<double>());
  return most;
}

double median_of(const json& entries, const char* key) {
  std::vector<double> values;
  for (const json& entry : entries) values.push_back(entry.at(key).get<double>());
  return median(values);
}

/// Runs the job, and applies the failures to it.
class Recovering {
 public:
  Recovering(const RecoverOptions& options, std::string folder, RecoverSetup setup)
      : options_(options),
        folder_(std::move(folder)),
        setup_(std::move(setup)),
        random_(random_key(options.job.seed, options.job.workers)) {}

  std::expected<json, Failure> run(const Progress& progress) {
    if (Outcome started = start(); !started) return std::unexpected(started.error());
    json kills = json::array();
    for (uint32_t at = 0; at < options_.kills; ++at) {
      auto kill = kill_a_shard();
      if (!kill) return std::unexpected(kill.error());
      progress(fmt::format("shard {} {}, {}: first update after {:.2f} s", (*kill)["shard"].get<uint32_t>(),
                           options_.stop ? "stopped" : "killed",
                           options_.spare ? "a spare has its number" : "started again",
                           (*kill)["first_update_s"].get<double>()));
      kills.push_back(std::move(*kill));
    }
    json joins = json::array();
    for (uint32_t at = 0; at < options_.joins; ++at) {
      auto join = join_anew();
      if (!join) return std::unexpected(join.error());
      progress(fmt::format("worker {} joined as a new process: takes part after {:.2f} s", options_.job.workers - 1,
                           (*join)["takes_part_s"].get<double>()));
      joins.push_back(std::move(*join));
    }
    return end(std::move(kills), std::move(joins));
  }

 private:
  struct Running {
    uint32_t serial = 0;
    launch::ChildProcess process;
  };

  Outcome start() {
    std::vector<std::string> addresses;
    for (uint32_t shard = 0; shard < options_.shards; ++shard) {
      auto started = start_shard(shard, 0);
      if (!started) return std::unexpected(started.error());
      setup_.shards[shard] = started->address();
      shards_.push_back(std::move(*started));
    }
    auto shared = RecoverShared::create(setup_.marks.serials, setup_.marks.pushes_max);
    if (!shared) return fail_with(shared.error());
    shared_ = std::move(*shared);
    for (uint32_t worker = 0; worker < options_.job.workers; ++worker) {
      if (Outcome started = start_worker(worker, worker); !started) return started;
    }
    return wait_for_rounds();
  }

  std::expected<ShardProcess, Failure> start_shard(uint32_t shard, uint16_t port) const {
    launch::ShardProcessOptions process;
    process.shard = shard;
    process.shards = options_.shards;
    process.port = port;
    return start_server(std::move(process), "shard" + std::to_string(shard));
  }

  std::expected<ShardProcess, Failure> start_spare() const {
    launch::ShardProcessOptions process;
    process.spare = true;
    return start_server(std::move(process), "spare");
  }

  std::expected<ShardProcess, Failure> start_server(launch::ShardProcessOptions process,
                                                    const std::string& name) const {
    process.table = options_.table.empty() ? folder_ + "/table" : options_.table;
    process.log = folder_ + "/" + name + ".log";
    process.timeout_ms = static_cast<int>(kTimeoutNs / kNsPerMs);
    auto started = ShardProcess::start(process);
    if (!started) return std::unexpected(program::failure_of(started.error(), program::ErrorPlace::kShard));
    return std::move(*started);
  }

  Outcome start_worker(uint32_t worker, uint32_t serial) {
    auto child =
        launch::ChildProcess::fork_call({}, [&] { return run_recover_worker(setup_, worker, serial, *shared_); });
    if (!child) return fail_with(child.error());
    workers_.push_back({serial, std::move(*child)});
    return {};
  }

  /// Looks at the processes until `done()`.
  Outcome wait_until(const std::string& what, const std::function<bool()>& done) {
    const TimeNs deadline = monotonic_now_ns() + kTimeoutNs;
    while (!done()) {
      if (program::interruption_requests().count() > 0) return fail_with(ExitCode::kInterrupted, "interrupted");
      for (Running& running : workers_) {
        const auto report = running.process.try_wait();
        if (report && report->exit_code != 0) return worker_failure(running, report->exit_code);
      }
      for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
        if (shards_[shard].process().try_wait())
          return fail_with(ExitCode::kJobEnded, "shard " + std::to_string(shard) + " ended");
      }
      if (monotonic_now_ns() > deadline)
        return fail_with(ExitCode::kJobEnded,
                         fmt::format("not within {:.0f} s: {}", recover_seconds(kTimeoutNs), what));
      ::poll(nullptr, 0, kRecoverLookEveryMs);
    }
    return {};
  }

  Failure worker_failure_of(uint32_t serial, int exit_code) const {
    return {launch::code_of_child_end(exit_code), fmt::format("worker process {} ended with code {}: {}", serial,
                                                              exit_code, shared_->process(serial).failure)};
  }
  Outcome worker_failure(const Running& running, int exit_code) const {
    return std::unexpected(worker_failure_of(running.serial, exit_code));
  }

  /// Until every running worker has ended `options.rounds` more rounds.
  Outcome wait_for_rounds() {
    std::vector<uint32_t> least;
    for (const Running& running : workers_)
      least.push_back(shared_->process(running.serial).answered + options_.rounds);
    return wait_until("every worker has more rounds", [&] {
      for (size_t at = 0; at < workers_.size(); ++at) {
        if (shared_->process(workers_[at].serial).answered < least[at]) return false;
      }
      return true;
    });
  }

  /// The first round that began after `since` and has ended, of one worker.
  const RecoverRound* first_round_after(uint32_t serial, TimeNs since) const {
    const auto rounds = shared_->rounds(serial);
    const auto found = std::ranges::upper_bound(rounds, since, {}, &RecoverRound::start_ns);
    return found == rounds.end() ? nullptr : &*found;
  }

  std::expected<json, Failure> kill_a_shard() {
    const auto shard = static_cast<uint32_t>(random_.next_below(options_.shards));
    std::expected<ShardProcess, Failure> successor = std::unexpected(Failure());
    if (options_.spare) {
      successor = start_spare();
      if (!successor) return std::unexpected(successor.error());
      // A spare that has just started knows no shard yet: in a service it has waited for long.
      if (Outcome settled = wait_for_rounds(); !settled) return std::unexpected(settled.error());
    }
    // Anywhere in some rounds to come.
    const auto wait_ms = static_cast<int>(random_.next_below(static_cast<uint64_t>(4 * round_ms()) + 1));
    ::poll(nullptr, 0, wait_ms);
    const uint16_t port = shards_[shard].port();
    const TimeNs killed = monotonic_now_ns();
    if (options_.stop) {
      shards_[shard].process().send_signal(SIGSTOP);
    } else {
      shards_[shard].process().kill_now();
    }
    if (!options_.spare) {
      successor = start_shard(shard, port);
    } else if (Status taken = successor->await_number(); !taken) {
      successor = std::unexpected(program::failure_of(taken.error(), program::ErrorPlace::kShard));
    }
    if (!successor) return std::unexpected(successor.error());
    ShardProcess gone = std::exchange(shards_[shard], std::move(*successor));
    setup_.shards[shard] = shards_[shard].address();  // of a spare: a worker that joins later needs it
    const TimeNs ready = monotonic_now_ns();
    TimeNs last = 0;
    // A round that began before the kill may have its updates from the shard that is gone.
    const auto all_moved = [&] {
      last = 0;
      for (const Running& running : workers_) {
        const RecoverRound* const round = first_round_after(running.serial, killed);
        if (round == nullptr) return false;
        last = std::max(last, round->end_ns);
      }
      return true;
    };
    if (Outcome moved = wait_until("every worker has an update after the kill", all_moved); !moved)
      return std::unexpected(moved.error());
    gone.process().kill_now();  // until here nothing has ended the connections of a stopped process
    if (Outcome more = wait_for_rounds(); !more) return std::unexpected(more.error());
    return json{{"shard", shard},
                {"ready_s", recover_seconds(ready - killed)},
                {"first_update_s", recover_seconds(last - killed)}};
  }

  /// Rounds of a worker that began in [from, to), in milliseconds.
  std::vector<double> round_times(uint32_t serial, TimeNs from, TimeNs to) const {
    std::vector<double> times;
    for (const RecoverRound& round : shared_->rounds(serial)) {
      if (round.start_ns >= from && round.start_ns < to) times.push_back(milliseconds(round.end_ns - round.start_ns));
    }
    return times;
  }

  /// The median of the last rounds, of the first worker.
  double round_ms() const {
    const auto rounds = shared_->rounds(workers_.front().serial);
    std::vector<double> times;
    for (const RecoverRound& round : rounds.last(std::min<size_t>(rounds.size(), options_.rounds)))
      times.push_back(milliseconds(round.end_ns - round.start_ns));
    return median(times);
  }

  std::expected<json, Failure> join_anew() {
    if (Outcome left = leave_last(); !left) return std::unexpected(left.error());
    const TimeNs without = monotonic_now_ns();
    if (Outcome more = wait_for_rounds(); !more) return std::unexpected(more.error());
    const uint32_t serial = next_serial_++;
    const TimeNs started = monotonic_now_ns();
    if (Outcome begun = start_worker(options_.job.workers - 1, serial); !begun) return std::unexpected(begun.error());
    const RecoverProcess& joiner = shared_->process(serial);
    const auto takes_part = [&] { return joiner.first_counted_ns.load() != 0; };
    if (Outcome joined = wait_until("the new process takes part", takes_part); !joined)
      return std::unexpected(joined.error());
    const TimeNs counted = joiner.first_counted_ns;
    if (Outcome more = wait_for_rounds(); !more) return std::unexpected(more.error());
    std::vector<double> before;
    std::vector<double> meanwhile;
    for (const Running& running : workers_) {
      if (running.serial == serial) continue;
      std::ranges::copy(round_times(running.serial, without, started), std::back_inserter(before));
      std::ranges::copy(round_times(running.serial, started, counted), std::back_inserter(meanwhile));
    }
    if (meanwhile.empty()) return fail_with(ExitCode::kInternal, "no round began while the new process joined");
    return json{{"has_weights_s", recover_seconds(joiner.has_weights_ns - started)},
                {"takes_part_s", recover_seconds(counted - started)},
                {"round_before_ms", median(before)},
                {"round_meanwhile_ms", median(meanwhile)},
                {"round_longest_ms", std::ranges::max(meanwhile)},
                {"rounds_meanwhile", meanwhile.size() / (workers_.size() - 1)},
                {"round_ratio", median(meanwhile) / median(before)}};
  }

  /// The last worker goes; the others go on without it.
  Outcome leave_last() {
    Running leaver = std::move(workers_.back());
    workers_.pop_back();
    shared_->process(leaver.serial).leave = true;
    std::optional<launch::ExitReport> report;
    const auto gone = [&] { return (report = leaver.process.try_wait()).has_value(); };
    if (Outcome left = wait_until("the worker that is to leave has left", gone); !left) return left;
    if (report->exit_code != 0) return worker_failure(leaver, report->exit_code);
    return {};
  }

  std::expected<json, Failure> end(json kills, json joins) {
    const double round = round_ms();
    uint64_t step = 0;
    for (const Running& running : workers_) step = std::max(step, shared_->rounds(running.serial).back().step);
    const uint64_t end_step = step + kStepsToTheEnd;
    shared_->end_step() = end_step;
    const auto all_ended = [&] {
      return std::ranges::all_of(workers_, [](Running& running) { return running.process.try_wait().has_value(); });
    };
    if (Outcome ended = wait_until("every worker has finished", all_ended); !ended)
      return std::unexpected(ended.error());
    RecoverVerdict all;
    for (Running& running : workers_) {
      const auto report = running.process.try_wait();
      if (report->exit_code != 0) return std::unexpected(worker_failure_of(running.serial, report->exit_code));
      const RecoverVerdict& own = shared_->process(running.serial).verdict;
      all.steps_lost = std::max(all.steps_lost, own.steps_lost);
      all.double_counted = std::max(all.double_counted, own.double_counted);
      all.wrong_weights = std::max(all.wrong_weights, own.wrong_weights);
    }
    uint64_t pushes = 0;
    for (uint32_t serial = 0; serial < setup_.marks.serials; ++serial) pushes += shared_->process(serial).pushes;
    for (ShardProcess& shard : shards_) shard.stop();
    return summary(std::move(kills), std::move(joins), all,
                   {{"round_ms", round}, {"steps", end_step}, {"pushes", pushes}});
  }

  json summary(json kills, json joins, const RecoverVerdict& verdict, json result) const {
    result.update({{"bench", "recover"},
                   {"workers", options_.job.workers},
                   {"shards", options_.shards},
                   {"n", options_.n},
                   {"density", options_.density},
                   {"spare", options_.spare},
                   {"stop", options_.stop},
                   {"codec", options_.codec},
                   {"heartbeat_ms", options_.job.liveness.heartbeat.count()},
                   {"steps_lost", verdict.steps_lost},
                   {"double_counted", verdict.double_counted},
                   {"wrong_weights", verdict.wrong_weights}});
    if (!kills.empty()) {
      result["first_update_s"] = worst(kills, "first_update_s");
      result["first_update_median_s"] = median_of(kills, "first_update_s");
    }
    if (!joins.empty()) {
      result["has_weights_s"] = worst(joins, "has_weights_s");
      result["takes_part_s"] = worst(joins, "takes_part_s");
      result["round_ratio"] = worst(joins, "round_ratio");
      result["round_ratio_median"] = median_of(joins, "round_ratio");
    }
    result["kills"] = std::move(kills);
    result["joins"] = std::move(joins);
    return result;
  }

  const RecoverOptions& options_;
  std::string folder_;
  RecoverSetup setup_;
  RandomSequence random_;
  std::unique_ptr<RecoverShared> shared_;
  std::vector<ShardProcess> shards_;
  std::vector<Running> workers_;  ///< in the job now, or ended well
  uint32_t next_serial_ = options_.job.workers;
};

std::expected<RecoverSetup, Failure> recover_setup_of(const RecoverOptions& options) {
  RecoverSetup setup;
  setup.job = "recover";
  setup.workers = options.job.workers;
  setup.shards = launch::addresses_to_come(options.shards);
  setup.parts_per_shard = options.job.layout.parts_per_shard;
  setup.codec = options.codec;
  setup.heartbeat = options.job.liveness.heartbeat;
  setup.marks.n = options.n;
  if (options.joins > 0 && options.job.workers < 2)
    return fail_with(ExitCode::kUsage, "--joins: the job continues without a worker; --workers 2 at least");
  if (options.spare && options.shards < 2)
    return fail_with(ExitCode::kUsage, "--spare: workers hear of it from another shard; --shards 2 at least");
  if (options.stop && (!options.spare || !options.table.starts_with("etcd://")))
    return fail_with(ExitCode::kUsage,
                     "--stop: a stopped process keeps its lease of a file; --spare and a --table in etcd");
  if (Status valid = check_recover_job(setup); !valid) return fail_with(valid.error());
  auto marks =
      RecoverMarks::make(options.n, options.density, recover_parts(setup), options.job.workers + options.joins);
  if (!marks) return fail_with(marks.error());
  setup.marks = std::move(*marks);
  return setup;
}

}  // namespace

std::expected<json, Failure> bench_recover(const RecoverOptions& options, const Progress& progress) {
  program::interruption_requests();
  auto setup = recover_setup_of(options);
  if (!setup) return std::unexpected(setup.error());
  auto folder = program::ScratchFolder::make("millrace-recover");
  if (!folder) return fail_with(folder.error());
  auto result = Recovering(options, folder->path(), std::move(*setup)).run(progress);
  // The servers' logs stay where the failure points to them, and nowhere else.
  if (!result && result.error().code != ExitCode::kInterrupted) {
    result.error().message += " (servers' logs: " + folder->path() + ")";
    folder->keep();
  }
  return result;
}

}  // namespace millrace::bench
