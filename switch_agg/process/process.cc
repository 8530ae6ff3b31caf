#include "switch_agg/process/process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "monitoring/http/http_port.h"
#include "monitoring/http/secure/http_security.h"
#include "monitoring/metrics.h"
#include "monitoring/open_files.h"
#include "monitoring/trace/trace_answer.h"
#include "protocol/address/endpoint_text.h"
#include "switch_agg/packet_io/udp_port.h"
#include "switch_agg/process/jobs_file.h"
#include "switch_agg/process/jobs_of_lane.h"
#include "switch_agg/process/metrics_export.h"
#include "switch_agg/process/packet_loop.h"
#include "switch_agg/process/status_json.h"

namespace millrace::switch_agg {
namespace {

/// Time without a pass of a lane's loop after which /healthz reports a fault.
constexpr TimeNs kStallLimit = 5 * kNsPerS;
/// Interval of checks for refusals of lanes.
constexpr int kLookEveryMs = 1000;

Result<uint64_t> random_seed() {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed)
    return fail(ErrorCode::kIo, "the system gives no random numbers (getrandom)");
  return seed;
}

struct Ports {
  std::vector<std::unique_ptr<PacketPort>> ports;
  std::string address;  ///< of all of them
};

Result<Ports> open_kernel_ports(const RunOptions& options) {
  auto ports = UdpPort::open_lanes({.listen = options.listen, .packet_bytes_max = options.limits.packet_bytes_max},
                                   options.lcores);
  if (!ports) return std::unexpected(ports.error());
  Ports opened{.ports = {}, .address = endpoint_text(ports->front()->address())};
  for (auto& port : *ports) opened.ports.push_back(std::move(port));
  return opened;
}

Result<Ports> open_ports(const RunOptions& options) {
  if (options.pmd == "kernel") return open_kernel_ports(options);
  auto ports = open_dpdk_ports(options.dpdk);
  if (!ports) return std::unexpected(ports.error());
  return Ports{.ports = std::move(*ports), .address = endpoint_text(options.listen)};
}

}  // namespace

class SwitchProcess::Impl {
 public:
  explicit Impl(const RunOptions& options) : options_(options), export_(metrics_) {}
  ~Impl() {
    http_.reset();
    if (wake_ >= 0) ::close(wake_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status open();
  void run(monitoring::ServiceNotifier& manager);
  void wake() const noexcept {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  }

  std::atomic<bool> stop_ = false;
  std::atomic<bool> reload_ = false;
  std::string address_;
  std::string http_address_;

 private:
  Status fit(const std::vector<SwitchJob>& jobs) const;
  Status replace_jobs(std::vector<SwitchJob> jobs);
  Status open_http();
  Status judge_descriptors() const;
  void reload();
  SwitchStatus status() const;
  std::optional<std::string> stalled() const;

  RunOptions options_;
  int wake_ = -1;
  monitoring::SpanRecorder spans_;  ///< before the lanes that record into it
  std::vector<std::unique_ptr<Lane>> lanes_;
  TimeNs started_ = 0;
  mutable std::mutex jobs_mutex_;
  std::vector<SwitchJob> jobs_;
  monitoring::Metrics metrics_;
  std::mutex export_mutex_;
  MetricsExport export_;
  std::shared_ptr<monitoring::HttpProtection> protection_;
  std::unique_ptr<monitoring::HttpPort> http_;  ///< last: its threads ask the others
};

/// Judges a list by this switch's limits, before anything changes: each job, and the number of them on each lcore.
Status SwitchProcess::Impl::fit(const std::vector<SwitchJob>& jobs) const {
  for (uint32_t lane = 0; lane < options_.lcores; ++lane) {
    const std::vector<SwitchJob> here = jobs_of_lane(jobs, lane, options_.lcores);
    for (const SwitchJob& job : here) {
      if (const Status can = judge_job(job, options_.limits); !can)
        return fail(can.error().code,
                    fmt::format("{}: job '{}': {}", options_.jobs_file, job.name, can.error().message));
    }
    if (here.size() <= options_.limits.jobs_max) continue;
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("{}: {} jobs (or lanes of one) on lcore {}, and --jobs-max is {}", options_.jobs_file,
                            here.size(), lane, options_.limits.jobs_max));
  }
  return {};
}

Status SwitchProcess::Impl::open() {
  Result<std::vector<SwitchJob>> jobs = read_jobs_file(options_.jobs_file);
  if (!jobs) return std::unexpected(jobs.error());
  jobs_ = std::move(*jobs);
  if (const Status fits = fit(jobs_); !fits) return fits;
  Result<uint64_t> seed = random_seed();
  if (!seed) return std::unexpected(seed.error());
  wake_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_ < 0)
    return fail(ErrorCode::kIo,
                fmt::format("no file descriptor is left for this process: {}", monitoring::kRaiseOpenFiles));
  Result<Ports> opened = open_ports(options_);
  if (!opened) return std::unexpected(opened.error());
  address_ = std::move(opened->address);
  started_ = monotonic_now_ns();
  for (uint32_t number = 0; number < options_.lcores; ++number) {
    auto lane = std::make_unique<Lane>(std::move(opened->ports[number]), options_.limits, *seed + number);
    if (const Status added = lane->add_jobs(jobs_of_lane(jobs_, number, options_.lcores), started_); !added)
      return fail(added.error().code, fmt::format("{}: {}", options_.jobs_file, added.error().message));
    lane->record_into(spans_, number);
    lanes_.push_back(std::move(lane));
  }
  if (const Status shown = options_.http.empty() ? Status{} : open_http(); !shown) return shown;
  return judge_descriptors();
}

/// HTTP's connections are all that opens files later, but for a list of jobs and its keys.
Status SwitchProcess::Impl::judge_descriptors() const {
  constexpr uint64_t kLater = monitoring::HttpPort::kConnectionsMax + 8;
  const uint64_t limit = monitoring::open_file_limit();
  const uint64_t used = monitoring::open_file_count().value_or(0);
  if (used + kLater <= limit) return {};
  return fail(ErrorCode::kIo,
              fmt::format("this process may open {} files, {} are open, and it keeps {} for HTTP and lists of "
                          "jobs; {}",
                          limit, used, kLater, monitoring::kRaiseOpenFiles));
}

Status SwitchProcess::Impl::open_http() {
  monitoring::HttpHandlers handlers;
  handlers.title = fmt::format("Millrace switch {}", address_);
  handlers.metrics_text = [this] {
    const std::lock_guard lock(export_mutex_);
    export_.update(status());
    return metrics_.prometheus_text();
  };
  handlers.unhealthy = [this] { return stalled(); };
  handlers.unready = [this] { return stop_.load() ? std::optional<std::string>("shutting down") : stalled(); };
  handlers.status_json = [this] { return status_json(status()); };
  handlers.trace_json = [this](std::string_view query) {
    return monitoring::answer_trace(spans_, query, {.kind = "switch", .address = address_});
  };
  auto protection = monitoring::open_http_protection(options_.http, options_.http_security);
  if (!protection) return std::unexpected(protection.error());
  protection_ = std::move(*protection);
  auto http = monitoring::HttpPort::start(options_.http, "--http", std::move(handlers), protection_);
  if (!http) return std::unexpected(http.error());
  http_ = std::move(*http);
  http_address_ = http_->address();
  return {};
}

SwitchStatus SwitchProcess::Impl::status() const {
  SwitchStatus status;
  status.pmd = options_.pmd;
  status.dpdk = dpdk_version();
  status.slots_max = options_.limits.slots_max * options_.lcores;
  const TimeNs now = monotonic_now_ns();
  status.now = now;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const LaneReport report = lanes_[lane]->report();
    status.lanes.push_back({address_, report, now - (report.at == 0 ? started_ : report.at)});
  }
  const std::lock_guard lock(jobs_mutex_);
  for (const SwitchJob& job : jobs_) {
    status.jobs.push_back({job.name, job.job, job.lanes, job.role == Role::kReduce ? "reduce" : "combine", job.workers,
                           job.window_indices, job.slots, job.reselect_k});
    status.jobs.back().racks = job.racks;
    if (job.role != Role::kCombine) continue;
    status.jobs.back().rack = SwitchStatus::JobStatus::Rack{job.rack_number, job.rack, endpoint_text(job.shard)};
  }
  add_job_reports(status);
  return status;
}

std::optional<std::string> SwitchProcess::Impl::stalled() const {
  const SwitchStatus now = status();
  for (size_t lane = 0; lane < now.lanes.size(); ++lane) {
    if (now.lanes[lane].age_ns > kStallLimit)
      return fmt::format("the loop of lcore {} has been stalled for {} ms", lane, now.lanes[lane].age_ns / kNsPerMs);
  }
  return std::nullopt;
}

void SwitchProcess::Impl::reload() {
  if (const Status read = protection_ ? protection_->reload() : Status{}; !read)
    kSwitchProgram.say(fmt::format("SIGHUP: {}; HTTP stays as it is", read.error().message));
  Result<std::vector<SwitchJob>> jobs = read_jobs_file(options_.jobs_file);
  const Status replaced = jobs ? replace_jobs(std::move(*jobs)) : std::unexpected(jobs.error());
  if (!replaced) return kSwitchProgram.say(fmt::format("{}; the jobs stay as they are", replaced.error().message));
  if (!options_.quiet) kSwitchProgram.say(fmt::format("{} jobs now", jobs_.size()));
}

/// Changes nothing where a lane cannot take its part of the list.
Status SwitchProcess::Impl::replace_jobs(std::vector<SwitchJob> jobs) {
  if (const Status fits = fit(jobs); !fits) return fits;
  std::vector<std::vector<uint32_t>> removed;
  std::vector<std::vector<PreparedJob>> added;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    JobChanges changes = job_changes(jobs_, jobs, lane, options_.lcores);
    Result<std::vector<PreparedJob>> prepared = lanes_[lane]->prepare(changes.added);
    if (!prepared)
      return fail(prepared.error().code, fmt::format("{}: {}", options_.jobs_file, prepared.error().message));
    removed.push_back(std::move(changes.removed));
    added.push_back(std::move(*prepared));
  }
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane)
    lanes_[lane]->change_jobs(std::move(removed[lane]), std::move(added[lane]));
  const std::lock_guard lock(jobs_mutex_);
  jobs_ = std::move(jobs);
  return {};
}

/// Returns the time until the manager's next sign of life is due, at most kLookEveryMs.
int wait_ms(const monitoring::ServiceNotifier& manager, TimeNs now) {
  const TimeNs wait = std::clamp<TimeNs>(manager.next_keep_alive() - now, 0, kLookEveryMs * kNsPerMs);
  return static_cast<int>((wait + kNsPerMs - 1) / kNsPerMs);
}

void SwitchProcess::Impl::run(monitoring::ServiceNotifier& manager) {
  std::vector<std::jthread> threads;
  for (const std::unique_ptr<Lane>& lane : lanes_) threads.emplace_back([&lane] { lane->run(); });
  if (const Status told = manager.ready("serving"); !told) kSwitchProgram.say(told.error().message);
  while (!stop_.load()) {
    pollfd waker{wake_, POLLIN, 0};
    if (::poll(&waker, 1, wait_ms(manager, monotonic_now_ns())) > 0) {
      uint64_t times = 0;
      [[maybe_unused]] const ssize_t taken = ::read(wake_, &times, sizeof times);
    }
    if (reload_.exchange(false)) {
      manager.reloading(monotonic_now_ns());
      reload();
      if (const Status told = manager.ready("serving"); !told) kSwitchProgram.say(told.error().message);
    }
    // A stalled lane is worth a restart: no sign of life then.
    const std::optional<std::string> reason = manager.is_present() ? stalled() : std::nullopt;
    if (!reason) manager.keep_alive(monotonic_now_ns());
    for (const std::unique_ptr<Lane>& lane : lanes_) {
      for (const std::string& refusal : lane->take_refusals()) kSwitchProgram.say(refusal);
      lane->take_retired();  // and frees them
    }
  }
  manager.stopping("shutting down");
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->request_stop();
}

SwitchProcess::SwitchProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SwitchProcess::~SwitchProcess() = default;

Result<std::unique_ptr<SwitchProcess>> SwitchProcess::start(const RunOptions& options) {
  try {
    auto impl = std::make_unique<Impl>(options);
    if (const Status opened = impl->open(); !opened) return std::unexpected(opened.error());
    return std::unique_ptr<SwitchProcess>(new SwitchProcess(std::move(impl)));
  } catch (const std::bad_alloc&) {
    const AggregatorOptions& limits = options.limits;
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("there is no memory for {} slots of {} indices on each of {} lcores: fewer --slots-max or "
                            "--lcores, or a smaller --window-indices-max",
                            limits.slots_max, limits.window_indices_max, options.lcores));
  }
}

std::vector<std::string> SwitchProcess::addresses() const { return {impl_->address_}; }
std::string SwitchProcess::http_address() const { return impl_->http_address_; }
void SwitchProcess::run(monitoring::ServiceNotifier& manager) { impl_->run(manager); }

void SwitchProcess::request_stop() noexcept {
  impl_->stop_.store(true);
  impl_->wake();
}

void SwitchProcess::request_reload() noexcept {
  impl_->reload_.store(true);
  impl_->wake();
}

}  // namespace millrace::switch_agg
