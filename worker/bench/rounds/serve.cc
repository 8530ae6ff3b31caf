#include "worker/bench/rounds/serve.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "kernels/base/allocator.h"
#include "kernels/base/random.h"
#include "kernels/base/words.h"
#include "kernels/stream/stream.h"
#include "protocol/job/switch_layout.h"
#include "worker/bench/rounds/serve_compare.h"
#include "worker/bench/rounds/serve_keys.h"
#include "worker/bench/rounds/serve_racks.h"
#include "worker/bench/rounds/serve_raw.h"
#include "worker/bench/rounds/serve_row.h"
#include "worker/bench/rounds/serve_shared.h"
#include "worker/bench/rounds/serve_switch.h"
#include "worker/bench/rounds/serve_wait.h"
#include "worker/bench/rounds/serve_worker.h"
#include "worker/launch/child_process.h"
#include "worker/launch/namespace_hosts.h"
#include "worker/launch/shard_process.h"
#include "worker/launch/switch_process.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/scratch_folder.h"

namespace millrace::bench {
namespace {

using launch::ExitReport, launch::Hosts, launch::SwitchProcessOptions, program::ExitCode, program::fail_with;
using nlohmann::json, program::Failure;
using Progress = std::function<void(const std::string&)>;

constexpr int kStartTimeoutMs = 30'000;
constexpr int kStopGraceMs = 5'000;
constexpr double kServeMegabyte = 1e6;
constexpr const char* kSwitchRow = "switch";
constexpr const char* kRacksRow = "racks";
constexpr const char* kSelectedRow = "racks+cut";
constexpr double kLossMax = 0.2;
constexpr double kLargestWindowDensityMax = 0.05;  ///< of entries, in windows of 65,536 and datagrams of 1,500 bytes
constexpr uint32_t kJumboMin = 4096;               ///< MTU
constexpr uint32_t kSwitchJob = 1;

// Default number of parts a shard: of 2, 3, 4, 6, 8, 9, 11, 12, 14 and 16, the one with the shortest rounds. Tried at
// n = 2^24, density 0.01. On loopback every message costs and waits for no link. Behind a rate the bare transport (the
// reference) is as fast with 9 as with 16, and slower with fewer. A code of few bits an entry needs few parts.
constexpr uint32_t kPartsLoopback = 3;
constexpr uint32_t kPartsLimited = 9;
constexpr uint32_t kPartsLimitedFewBits = 3;

double serve_quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::llround(q * static_cast<double>(values.size() - 1)))];
}

struct Plan {
  ServeBenchOptions options;  ///< with every "choose for me" chosen
  uint64_t k = 0;
  uint32_t rounds_all = 0;
  uint32_t checked_round = 0;
  std::string directory;  // of the membership table and the servers' logs

  std::string keys() const { return options.secure ? directory + "/keys" : std::string(); }
  bool limited() const { return !options.rate.empty(); }
  uint32_t parts_or(uint32_t behind_a_rate) const {
    if (options.job.layout.parts_per_shard != 0) return options.job.layout.parts_per_shard;
    return limited() ? behind_a_rate : kPartsLoopback;
  }
};

Result<Plan> make_plan(const ServeBenchOptions& options) {
  Plan plan{options, 0, 0, 0, {}};
  if (options.job.workers == 0 || options.shards == 0 || options.rounds == 0 || options.n == 0 ||
      options.n > kDimensionMax) {
    return fail(ErrorCode::kInvalidArgument, "workers, shards, rounds and n must be at least 1, n at most 2^32");
  }
  if (!(options.density > 0 && options.density <= 0.25))
    return fail(ErrorCode::kInvalidArgument, "density must be over 0 and at most 0.25");
  if (!(options.loss >= 0 && options.loss <= kLossMax) || (options.loss > 0 && options.rate.empty()))
    return fail(ErrorCode::kInvalidArgument, "loss is 0 to 0.2, and of links behind a rate");
  if (options.mtu != 1500 && options.rate.empty())
    return fail(ErrorCode::kInvalidArgument, "--mtu is of links behind a rate (--link-rate)");
  plan.k = std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(options.density * static_cast<double>(options.n))));
  plan.rounds_all = options.rounds + options.warmup_rounds;
  if (options.path == ServePath::kSwitch) plan.options.rows.clear();
  // A window's contribution is two datagrams at 1 %, and must not be over 16, nor a rack's sum.
  const bool is_sparse = options.density <= kLargestWindowDensityMax && options.racks == 0;
  const uint32_t block_indices = is_sparse || options.mtu >= kJumboMin ? 65'536 : 32'768;
  if (!options.job.grid) plan.options.job.grid = Grid{.block_indices = block_indices, .exponent_initial = -12};
  if (options.racks > options.job.workers)
    return fail(ErrorCode::kInvalidArgument, "--racks: a rack has a worker at least");
  const SwitchPath& path = switch_of(options.job);
  if (path.lanes == 0 || path.slots % path.lanes != 0)
    return fail(ErrorCode::kInvalidArgument, "--switch-slots must be a multiple of --switch-lanes");
  if (options.racks > 0 && options.path == ServePath::kServer)
    return fail(ErrorCode::kInvalidArgument, "--racks: racks' switches are of path switch (--path)");
  if (options.racks > 0) {
    plan.options.rows.insert(plan.options.rows.end(), {kStraightRow, kRacksRow, kSelectedRow});
  } else if (options.path != ServePath::kServer) {
    plan.options.rows.push_back(kSwitchRow);
  }
  if (plan.options.lossless_codec.empty()) plan.options.lossless_codec = plan.limited() ? "gap+raw" : "raw+raw";
  RandomSequence random(random_key(options.job.seed, 0x5e1ec7));
  plan.checked_round = options.warmup_rounds + static_cast<uint32_t>(random.next_below(options.rounds));
  return plan;
}

/// The servers' logs stay where a failure points to them, and nowhere else.
class LogFolder {
 public:
  explicit LogFolder(program::ScratchFolder folder) : folder_(std::move(folder)) {}
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;
  ~LogFolder() {
    if (program::interruption_requests().count() == 0) folder_.keep();  // unless it is empty
  }

 private:
  program::ScratchFolder folder_;
};

std::vector<double> measured_ms(ServeShared& shared, const Plan& plan) {
  std::vector<double> times;
  for (uint32_t round = plan.options.warmup_rounds; round < plan.rounds_all; ++round)
    times.push_back(shared.round_ms(round));
  return times;
}

int round_budget_ms(const Plan& plan) {
  constexpr int kBaseMs = 120'000;
  constexpr int kPerRoundMs = 4'000;
  return kBaseMs + static_cast<int>(plan.rounds_all) * kPerRoundMs;
}

RawPlan raw_plan(const Plan& plan) {
  const uint32_t parts = plan.parts_or(kPartsLimited) * plan.options.shards;
  RawPlan raw{plan.options.job.workers, plan.options.shards, plan.rounds_all, {}};
  for (uint32_t part = 0; part < parts; ++part)
    raw.part_entries.push_back(plan.k * (part + 1) / parts - plan.k * part / parts);
  return raw;
}

// With the allocator as every program has it, or tuned as Millrace's own processes are (kernels/base/allocator.h).
enum class RawAllocator : uint8_t { kDefault = 1, kTuned = 2 };

std::expected<std::vector<double>, Failure> run_raw(const Plan& plan, const Hosts& hosts, RawAllocator allocator) {
  const RawPlan raw = raw_plan(plan);
  auto shared = ServeShared::create(raw.workers, raw.rounds);
  if (!shared) return fail_with(shared.error());
  std::vector<launch::ChildProcess> shards;
  std::vector<std::string> addresses;
  for (uint32_t shard = 0; shard < raw.shards; ++shard) {
    const launch::SpawnOptions where{{}, hosts.network_namespace(shard), {}, {}};
    auto child = launch::ChildProcess::fork_call(where, [&, shard] {
      if (allocator == RawAllocator::kTuned) keep_freed_memory();
      return run_raw_shard(raw, shard, "tcp://" + hosts.address(shard) + ":0");
    });
    if (!child) return fail_with(child.error());
    auto address = child->read_line(kStartTimeoutMs);
    if (!address)
      return fail_with(ExitCode::kInternal, "the bare shard " + std::to_string(shard) + ": " + address.error().message);
    addresses.push_back(*address);
    shards.push_back(std::move(*child));
  }
  std::vector<launch::ChildProcess> workers;
  for (uint32_t worker = 0; worker < raw.workers; ++worker) {
    const launch::SpawnOptions where{{}, hosts.network_namespace(raw.shards + worker), {}, {}};
    auto child = launch::ChildProcess::fork_call(where, [&, worker] {
      if (allocator == RawAllocator::kTuned) keep_freed_memory();
      return run_raw_worker(raw, worker, addresses, **shared);
    });
    if (!child) return fail_with(child.error());
    workers.push_back(std::move(*child));
  }
  std::vector<ExitReport> reports;
  std::vector<ServerProcess> beside;
  for (launch::ChildProcess& shard : shards) beside.push_back({"shard", beside.size(), &shard});
  if (auto done = wait_for_workers(workers, beside, reports, round_budget_ms(plan)); !done)
    return fail_with(done.error().code, "bare ZeroMQ: " + done.error().message);
  return measured_ms(**shared, plan);
}

Result<RowSetup> row_setup(const Plan& plan, const std::string& name) {
  // Relative errors of QSGD by the bucket's maximum, up and down, for normal values: 0.17 at 4 bits, 0.0092 at 8.
  // `--only qsgd4,qsgd8` prints them. The bounds leave a factor of two and of three, and a wrong sum (an error near 1)
  // does not pass.
  constexpr double kErrorMax4 = 0.4;
  constexpr double kErrorMax8 = 0.03;
  const uint32_t few = plan.parts_or(kPartsLimitedFewBits);
  if (name == "lossless") return RowSetup{name, plan.options.lossless_codec, 0, plan.parts_or(kPartsLimited)};
  if (name == kSwitchRow) {
    RowSetup row{name, switch_codec_text(plan.options.job), 1, few};
    row.by_switch = true;
    return row;
  }
  if (name == kStraightRow || name == kRacksRow || name == kSelectedRow) {
    RowSetup row{name, switch_codec_text(plan.options.job), 1, few};
    row.by_switch = row.at_shard = true;
    row.racks = name != kStraightRow;
    row.cut = name == kSelectedRow;
    return row;
  }
  if (name == "qsgd4") return RowSetup{name, "gap+qsgd4", kErrorMax4, few};
  if (name == "qsgd8") return RowSetup{name, "gap+qsgd8", kErrorMax8, few};
  return fail(ErrorCode::kInvalidArgument, "unknown row '" + name + "': lossless, qsgd4 and qsgd8 are known");
}

json serve_row_json(const Plan& plan, const RowSetup& row, ServeShared& shared, const std::vector<ExitReport>& workers,
                    const std::vector<ExitReport>& shards) {
  double up = 0;
  double down = 0;
  uint64_t worker_peak = 0;
  uint64_t shard_peak = 0;
  for (uint32_t worker = 0; worker < plan.options.job.workers; ++worker) {
    up += static_cast<double>(shared.report(worker).bytes_up);
    down += static_cast<double>(shared.report(worker).bytes_down);
    worker_peak = std::max(worker_peak, workers[worker].peak_memory_bytes);
  }
  for (const auto& shard : shards) shard_peak = std::max(shard_peak, shard.peak_memory_bytes);
  const double per_worker_round = static_cast<double>(plan.options.job.workers) * plan.options.rounds;
  const auto& checked = shared.report(0);
  return json{{"algorithm", row.title()},
              {"row", row.name},
              {"links", row.links},
              {"codec", row.codec},
              {"path", row.by_switch ? "switch" : "server"},
              {"audit", row.audit},
              {"keys", !row.keys.empty()},
              {"parts_per_shard", row.parts_per_shard},
              {"bytes_up", up / per_worker_round},
              {"bytes_down", down / per_worker_round},
              {"checked_round", plan.checked_round},
              {"checked_entries", checked.checked_count},
              {"agrees_with_oracle", checked.check == 1},
              {"relative_error", checked.relative_error},
              {"worker_peak_mb", static_cast<double>(worker_peak) / kServeMegabyte},
              {"shard_peak_mb", static_cast<double>(shard_peak) / kServeMegabyte}};
}

/// Where the row's switch is; of a row of the server path nothing.
struct SwitchAddress {
  std::string address;
  std::string key_file;
  std::string shard_status = {};  ///< where shard 0 decides
};

uint64_t rack_share(const Plan& plan) { return std::max<uint64_t>(plan.k / std::max(plan.options.racks, 1u), 2); }

/// Of a datagram, behind the headers of UDP and IPv4.
uint32_t datagram_bytes_max(const Plan& plan) { return plan.options.mtu - 28; }

Path path_of(const Plan& plan, const RowSetup& row, const SwitchAddress& at) {
  if (!row.by_switch) return ServerPath{};
  SwitchPath path = switch_of(plan.options.job);
  path.address = at.address;
  path.job = kSwitchJob;
  path.packet_bytes = datagram_bytes_max(plan);
  return path;
}

ServeWorkerSetup worker_setup(const Plan& plan, const RowSetup& row, std::vector<std::string> shards,
                              const SwitchAddress& at) {
  const auto& options = plan.options;
  return {.job = "bench-" + row.name,
          .workers = options.job.workers,
          .shards = std::move(shards),
          .n = options.n,
          .k = plan.k,
          .seed = options.job.seed,
          .rounds = plan.rounds_all,
          .first_measured = options.warmup_rounds,
          .checked_round = plan.checked_round,
          .parts_per_shard = row.parts_per_shard,
          .threshold_period = row.by_switch ? 1 : options.threshold_period,
          .apply_after_acks = options.job.guarantees.apply_after_acks,
          .codec = row.by_switch ? "gap+raw" : row.codec,
          .error_max = row.error_max,
          .audit = row.audit,
          .path = path_of(plan, row, at),
          .grid = row.by_switch ? options.job.grid : std::nullopt,
          .switch_key_file = row.by_switch ? at.key_file : "",
          .keys = row.keys,
          .shard_status = at.shard_status,
          .racks = row.racks ? rack_members(options.job.workers, options.racks) : std::vector<std::vector<uint32_t>>(),
          .rack_share = row.cut ? rack_share(plan) : 0};
}

/// Before any process is started.
Status check_rows(const Plan& plan) {
  const std::vector<std::string> shards = launch::addresses_to_come(plan.options.shards);
  for (const std::string& name : plan.options.rows) {
    const auto row = row_setup(plan, name);
    if (!row) return std::unexpected(row.error());
    const SwitchAddress nowhere{"127.0.0.1:1", "a.key"};
    if (Status valid = check_serve_job(worker_setup(plan, *row, shards, nowhere)); !valid) return valid;
  }
  return {};
}

// Holds a run of a row, or several: its last result, and the times of all.
struct RowRuns {
  json row;
  std::vector<double> times;

  json with_times() const {
    json whole = row;
    whole["round_ms"] = serve_quantile(times, 0.5);
    whole["round_p99_ms"] = serve_quantile(times, 0.99);
    whole["round_min_ms"] = serve_quantile(times, 0);
    return whole;
  }
};

/// On the `number`-th of the hosts whose links have no limit.
SwitchProcessOptions switch_options(const Plan& plan, const Hosts& hosts, const std::string& files, uint32_t number) {
  const auto& options = plan.options;
  const uint32_t host = options.shards + options.job.workers + number;
  const uint32_t window = options.job.grid->block_indices;
  const uint64_t windows = (options.n + window - 1) / window;
  const SwitchPath& path = switch_of(options.job);
  return {.host = hosts.address(host),
          .network_namespace = hosts.network_namespace(host),
          .folder = plan.directory,
          .log = files + "-switch" + std::to_string(number) + ".log",
          .job = kSwitchJob,
          .workers = options.job.workers,
          .window_indices = window,
          .slots = protocol::switch_slots(path.slots, windows, path.lanes),
          .lanes = path.lanes,
          .reselect_k = std::max<uint64_t>(plan.k, 2),
          .packet_bytes = datagram_bytes_max(plan),
          .key_seed = options.job.seed,
          .timeout_ms = kStartTimeoutMs};
}

/// The row's switch, or its racks' switches, in front of the aggregator at `shard`.
Result<std::vector<launch::SwitchProcess>> start_switches(const Plan& plan, const Hosts& hosts, const RowSetup& row,
                                                          const std::string& files, const std::string& shard) {
  std::vector<launch::SwitchProcess> started;
  if (!row.by_switch || (row.at_shard && !row.racks)) return started;
  const auto members = rack_members(plan.options.job.workers, row.racks ? plan.options.racks : 1);
  for (uint32_t number = 0; number < members.size(); ++number) {
    SwitchProcessOptions options = switch_options(plan, hosts, files, number);
    if (row.racks) {
      options.rack = members[number];
      options.rack_number = number;
      options.shard = shard;
      options.reselect_k = row.cut ? rack_share(plan) : 0;
    }
    auto one = launch::SwitchProcess::start(options);
    if (!one) return std::unexpected(one.error());
    started.push_back(std::move(*one));
  }
  return started;
}

/// What shard 0 reads of the job whose steps it decides: its key, and its racks where it has some.
Result<std::string> write_job_files(const Plan& plan, const Hosts& hosts, const RowSetup& row,
                                    const std::string& files) {
  const std::string list = plan.directory + "/" + std::to_string(kSwitchJob) + ".racks";
  std::filesystem::remove(list);
  if (row.racks) {
    std::ofstream file(list);
    file << program::json_text(json{{"racks", rack_members(plan.options.job.workers, plan.options.racks)}});
    if (!file.flush()) return fail(ErrorCode::kIo, "cannot write '" + list + "'");
  }
  return launch::write_switch_key(switch_options(plan, hosts, files, 0));
}

/// Returns the set-up with which `worker` runs: its rack is its own.
ServeWorkerSetup serve_setup_of(const ServeWorkerSetup& setup, const std::vector<launch::SwitchProcess>& switches,
                                uint32_t worker) {
  ServeWorkerSetup own = setup;
  for (size_t rack = 0; rack < setup.racks.size(); ++rack) {
    if (std::ranges::binary_search(setup.racks[rack], worker)) own.rack = switches[rack].address();
  }
  return own;
}

/// Adds the bytes into shard 0 a round, and their references.
void add_racks(const Plan& plan, const RowSetup& row, ServeShared& shared, json& shown) {
  if (!row.at_shard) return;
  shown["bytes_into_shard"] = static_cast<double>(shared.report(0).bytes_into_shard) / plan.options.rounds;
  if (!row.racks) return;
  constexpr uint32_t kRoundsLooked = 5;  // of the same distribution all
  ServeJob job;
  job.n = plan.options.n;
  job.pushed = plan.k;
  job.seed = plan.options.job.seed;
  job.workers = plan.options.job.workers;
  const uint32_t looked = std::min(kRoundsLooked, plan.options.rounds);
  double bytes = 0;
  double entries = 0;
  const Grid& grid = *plan.options.job.grid;
  for (uint32_t round = 0; round < looked; ++round) {
    const CodedUnion united =
        coded_union(job, rack_members(plan.options.job.workers, plan.options.racks), plan.options.warmup_rounds + round,
                    grid.block_indices, grid.exponent_initial);
    bytes += static_cast<double>(united.bytes) / looked;
    entries += static_cast<double>(united.entries) / looked;
  }
  shown["racks"] = plan.options.racks;
  shown["rack_share"] = row.cut ? rack_share(plan) : 0;
  shown["coded_union_bytes"] = bytes;
  shown["coded_union_entries"] = entries;
  shown["ratio_to_coded_union"] = shown["bytes_into_shard"].get<double>() / bytes;
}

/// files  the beginning of the names of the table and of the logs.
program::Outcome run_row_serve(const Plan& plan, const Hosts& hosts, const RowSetup& row, const std::string& files,
                               RowRuns& runs) {
  const auto& options = plan.options;
  auto shared = ServeShared::create(options.job.workers, plan.rounds_all);
  if (!shared) return fail_with(shared.error());
  SwitchAddress at;
  if (row.at_shard) {
    auto key = write_job_files(plan, hosts, row, files);
    if (!key) return fail_with(key.error());
    at.key_file = *key;
  }
  std::vector<launch::ShardProcess> shards;
  std::vector<std::string> addresses;
  for (uint32_t shard = 0; shard < options.shards; ++shard) {
    const bool decides = row.at_shard && shard == 0;
    const launch::ShardProcessOptions process{.shard = shard,
                                              .shards = options.shards,
                                              .host = hosts.address(shard),
                                              .network_namespace = hosts.network_namespace(shard),
                                              .table = files + ".table",
                                              .log = files + "-shard" + std::to_string(shard) + ".log",
                                              .http = decides ? hosts.address(shard) + ":0" : std::string(),
                                              .datagrams = decides ? hosts.address(shard) + ":0" : std::string(),
                                              .job_keys = decides ? plan.directory : std::string(),
                                              .timeout_ms = kStartTimeoutMs};
    auto started = launch::ShardProcess::start(with_serve_keys(process, row.keys));
    if (!started) return std::unexpected(program::failure_of(started.error(), program::ErrorPlace::kShard));
    addresses.push_back(started->address());
    shards.push_back(std::move(*started));
  }
  auto switches = start_switches(plan, hosts, row, files, shards.front().datagrams());
  if (!switches) return std::unexpected(program::failure_of(switches.error(), program::ErrorPlace::kSwitch));
  if (row.at_shard) {
    at.address = shards.front().datagrams();
    at.shard_status = shards.front().http_address();
  } else if (row.by_switch) {
    at = {.address = switches->front().address(), .key_file = switches->front().key_file()};
  }
  const ServeWorkerSetup setup = worker_setup(plan, row, addresses, at);
  std::vector<launch::ChildProcess> workers;
  for (uint32_t worker = 0; worker < options.job.workers; ++worker) {
    const launch::SpawnOptions where{{}, hosts.network_namespace(options.shards + worker), {}, {}};
    auto child = launch::ChildProcess::fork_call(
        where, [&, worker] { return run_serve_worker(serve_setup_of(setup, *switches, worker), worker, **shared); });
    if (!child) return fail_with(child.error());
    workers.push_back(std::move(*child));
  }
  std::vector<ExitReport> worker_reports;
  std::vector<ServerProcess> beside;
  for (launch::ShardProcess& shard : shards) beside.push_back({"shard", beside.size(), &shard.process()});
  for (auto& one : *switches) beside.push_back({"switch", beside.size() - shards.size(), &one.process()});
  if (auto done = wait_for_workers(workers, beside, worker_reports, round_budget_ms(plan)); !done) {
    std::string sentence = row.name + ": " + done.error().message;
    for (uint32_t worker = 0; worker < options.job.workers; ++worker) {
      if ((*shared)->report(worker).failure[0] != '\0')
        sentence += "; worker " + std::to_string(worker) + ": " + (*shared)->report(worker).failure;
    }
    return fail_with(done.error().code, sentence + " (servers' logs: " + plan.directory + ")");
  }
  std::vector<ExitReport> shard_reports;
  for (auto& shard : shards) shard_reports.push_back(shard.stop(kStopGraceMs));
  const std::vector<double> times = measured_ms(**shared, plan);
  runs.times.insert(runs.times.end(), times.begin(), times.end());
  runs.row = serve_row_json(plan, row, **shared, worker_reports, shard_reports);
  add_racks(plan, row, **shared, runs.row);
  return {};
}

constexpr uint32_t kTurnRepeats = 4;  ///< of two sessions of each variant, for a fourth of the rounds

/// One row, or its variants in turns.
program::Outcome run_rows(const Plan& plan, const Hosts& hosts, const RowSetup& row, json& rows) {
  const std::vector<RowSetup> variants = variants_of(row, plan.options.audit, plan.keys());
  const size_t both_ways = 2 * variants.size();
  const bool alone = variants.size() == 1;
  Plan each = plan;
  if (!alone) {
    each.options.rounds = std::max(plan.options.rounds / kTurnRepeats, 1u);
    each.rounds_all = each.options.rounds + each.options.warmup_rounds;
    each.checked_round = each.options.warmup_rounds + plan.checked_round % each.options.rounds;
  }
  std::vector<RowRuns> runs(variants.size());
  // From the first to the last and back: changes of the machine in between affect all. A pair of sessions may differ by
  // more than a variant's cost.
  for (size_t turn = 0; turn < (alone ? 1 : kTurnRepeats * both_ways); ++turn) {
    const size_t variant = std::min(turn % both_ways, both_ways - 1 - turn % both_ways);
    const std::string files = plan.directory + "/" + row.name + "-" + row.links + std::to_string(turn);
    if (auto done = run_row_serve(each, hosts, variants[variant], files, runs[variant]); !done) return done;
  }
  for (const RowRuns& of_variant : runs) rows.push_back(of_variant.with_times());
  return {};
}

/// All rows, over links of this kind.
program::Outcome run_rows_over(const std::string& links, const Plan& plan, const Hosts& hosts, const Progress& progress,
                               json& rows) {
  Status set;
  if (links == kSingleLinks) set = hosts.carry_singly();
  if (links == kBurstLossLinks) set = hosts.lose_bursts(plan.options.loss);
  if (links == kLossyLinks) set = hosts.lose(plan.options.loss);
  if (!set) return fail_with(set.error());
  for (const auto& name : plan.options.rows) {
    auto setup = row_setup(plan, name);
    if (!setup) return fail_with(setup.error());
    setup->links = links;
    progress(setup->title() + " (" + setup->codec + "), " + std::to_string(plan.options.rounds) + " rounds");
    if (auto done = run_rows(plan, hosts, *setup, rows); !done) return done;
  }
  return {};
}

json raw_row(const char* name, const Plan& plan, const std::vector<double>& times) {
  return json{{"algorithm", name},
              {"parts_per_shard", plan.parts_or(kPartsLimited)},
              {"round_ms", serve_quantile(times, 0.5)},
              {"round_p99_ms", serve_quantile(times, 0.99)},
              {"round_min_ms", serve_quantile(times, 0)},
              {"bytes_up", plan.k * RawPlan::kPairBytes},
              {"bytes_down", plan.k * RawPlan::kPairBytes}};
}

}  // namespace

std::expected<json, Failure> bench_serve(const ServeBenchOptions& options, const Progress& progress) {
  program::interruption_requests();
  auto plan = make_plan(options);
  if (!plan) return fail_with(plan.error());
  if (const Status valid = check_rows(*plan); !valid) return fail_with(valid.error());
  auto made = program::ScratchFolder::make("millrace-bench");
  if (!made) return fail_with(made.error());
  plan->directory = made->path();
  if (const Status keys = make_serve_keys(plan->keys()); !keys) return fail_with(keys.error());
  const LogFolder folder(std::move(*made));
  auto hosts = Hosts::make(options.shards + options.job.workers, options.rate,
                           options.path == ServePath::kServer ? 0 : std::max(options.racks, 1u), options.mtu);
  if (!hosts) return fail_with(hosts.error());
  json rows = json::array();
  progress("bare ZeroMQ, " + std::to_string(options.rounds) + " rounds");
  auto raw = run_raw(*plan, *hosts, RawAllocator::kDefault);
  if (!raw) return std::unexpected(raw.error());
  std::vector<std::string> links{kPlainLinks};
  if (options.loss > 0) links.insert(links.end(), {kBurstLossLinks, kSingleLinks, kLossyLinks});
  for (const std::string& these : links) {
    if (auto done = run_rows_over(these, *plan, *hosts, progress, rows); !done) return std::unexpected(done.error());
  }
  if (const Status lost = options.loss > 0 ? hosts->lose(0) : Status(); !lost) return fail_with(lost.error());
  // Measured before and after: changes of the machine in between show in both.
  progress("bare ZeroMQ again");
  auto raw_after = run_raw(*plan, *hosts, RawAllocator::kDefault);
  if (!raw_after) return std::unexpected(raw_after.error());
  raw->insert(raw->end(), raw_after->begin(), raw_after->end());
  auto tuned = run_raw(*plan, *hosts, RawAllocator::kTuned);
  if (!tuned) return std::unexpected(tuned.error());
  const double raw_ms = serve_quantile(*raw, 0.5);
  const double gbit_s = raw_gbit_s(static_cast<double>(plan->k) * options.job.workers / options.shards, raw_ms);
  for (auto& row : rows) {
    row["raw_zmq_ms"] = raw_ms;
    row["raw_zmq_gbit_s"] = gbit_s;
    row["ratio_to_raw_zmq"] = row["round_ms"].get<double>() / raw_ms;
    row["ratio_to_raw_zmq_tuned_allocator"] = row["round_ms"].get<double>() / serve_quantile(*tuned, 0.5);
  }
  compare_paths(rows);
  compare_racks(rows);
  compare_losses(rows);
  compare_variants(rows);
  rows.push_back(raw_row("raw_zmq", *plan, *raw));
  rows.push_back(raw_row("raw_zmq_tuned_allocator", *plan, *tuned));
  std::error_code ignored;
  std::filesystem::remove_all(plan->directory, ignored);
  return json{{"bench", "serve"},         {"workers", options.job.workers}, {"shards", options.shards},
              {"n", options.n},           {"density", options.density},     {"k", plan->k},
              {"rounds", options.rounds}, {"rate", options.rate},           {"mtu", options.mtu},
              {"loss", options.loss},     {"secure", options.secure},       {"raw_zmq_ms", raw_ms},
              {"raw_zmq_gbit_s", gbit_s}, {"rows", std::move(rows)}};
}

}  // namespace millrace::bench
