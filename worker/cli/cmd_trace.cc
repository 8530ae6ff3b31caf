#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/plain_text.h"
#include "monitoring/http/http_client.h"
#include "protocol/files/atomic_file.h"
#include "worker/cli/cluster_addresses.h"
#include "worker/cli/commands.h"
#include "worker/cluster_status/fetch_status.h"
#include "worker/program/flag_range.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"
#include "worker/timeline/chrome_trace.h"

namespace millrace::cli {

using program::ExitCode;
using program::fail_with;
using program::Outcome;

namespace {

constexpr uint32_t kTraceSecondsMax = 3'600;
constexpr int kHttpOk = 200;

struct TraceFlags {
  std::string job;
  ClusterAddressFlags cluster;
  uint32_t seconds = 10;
  std::string output;
  bool json = false;
};

/// The processes to ask, and the job as the shards know it.
struct TracedJob {
  std::vector<std::string> addresses;
  std::vector<std::string> labels;  ///< of the addresses
  std::vector<uint64_t> numbers;    ///< of the job at the shards
  std::set<std::string> open_jobs;
  std::vector<std::pair<std::string, std::string>> unanswered;  ///< (address, or "shard N" by itself, and reason)
};

/// Returns another process's text for a terminal.
std::string printable(const std::string& text) {
  constexpr size_t kPrintedBytesMax = 300;
  return plain_text_of(text, kPrintedBytesMax);
}

/// Reads a non-negative number of a process's own status.
std::optional<uint64_t> number_in(const nlohmann::json& status, const char* field) {
  const auto found = status.find(field);
  if (found == status.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<uint64_t>();
}

/// Returns the label of a process by its status, "shard 0", "worker 3" or "rank 3". Empty: it is one of another job.
std::optional<std::string> label_of(const nlohmann::json& status, const std::string& job) {
  for (const char* kind : {"worker", "rank"}) {
    const auto number = number_in(status, kind);
    if (!number) continue;
    if (status.value("job", nlohmann::json()) != nlohmann::json(job)) return std::nullopt;
    return fmt::format("{} {}", kind, *number);
  }
  if (const auto shard = number_in(status, "shard")) return fmt::format("shard {}", *shard);
  return "switch";
}

void note_jobs(const cluster_status::Answers& answers, const std::string& job, TracedJob& traced) {
  for (const cluster_status::ShardAnswer& shard : answers.shards) {
    for (const JobStatus& open : shard.said.jobs) {
      traced.open_jobs.insert(open.name);
      if (open.name == job && std::ranges::find(traced.numbers, open.job) == traced.numbers.end())
        traced.numbers.push_back(open.job);
    }
  }
}

cluster_status::Answers ask(const TraceFlags& flags, const std::vector<std::string>& addresses,
                            const monitoring::HttpCaller* caller) {
  return cluster_status::ask_all(addresses, fetch_of(flags.cluster, caller));
}

/// Asks every process for its status, shards that were not named as well.
std::expected<TracedJob, program::Failure> find_job(const TraceFlags& flags, const monitoring::HttpCaller* caller) {
  const auto addresses = addresses_of(flags.cluster, fetch_of(flags.cluster, caller));
  if (!addresses) return std::unexpected(addresses.error());
  if (addresses->empty()) {
    return fail_with(ExitCode::kUsage,
                     "no address: give HTTP ports of shards and workers (millrace trace JOB 127.0.0.1:7700), --servers "
                     "or --table");
  }
  const cluster_status::Answers answers = ask(flags, *addresses, caller);
  TracedJob traced;
  traced.unanswered = answers.unanswered;
  for (const auto& [shard, why] : answers.why_missing)
    traced.unanswered.emplace_back(fmt::format("shard {}", shard), why);
  note_jobs(answers, flags.job, traced);
  for (const auto& [address, status] : answers.said) {
    const std::optional<std::string> label = label_of(status, flags.job);
    if (!label) {
      traced.unanswered.emplace_back(address, "it is of another job");
      continue;
    }
    traced.addresses.push_back(address);
    traced.labels.push_back(*label);
  }
  if (traced.addresses.empty()) {
    return fail_with(ExitCode::kUnreachable,
                     fmt::format("{}: {}", traced.unanswered.front().first, traced.unanswered.front().second));
  }
  if (answers.shards.empty() || !traced.numbers.empty()) return traced;
  std::string open;
  for (const std::string& name : traced.open_jobs) open += (open.empty() ? "" : ", ") + printable(name);
  return fail_with(ExitCode::kUnreachable, fmt::format("no shard has job '{}' open; open are: {}", printable(flags.job),
                                                       open.empty() ? "none" : open));
}

Result<std::string> fetch_trace(const std::string& address, const std::string& path, int timeout_ms,
                                const monitoring::HttpCaller* caller) {
  auto reply = monitoring::http_get(address, path, timeout_ms, caller);
  if (!reply) return std::unexpected(reply.error());
  if (reply->status == kHttpOk) return std::move(reply->body);
  return fail(ErrorCode::kUnavailable,
              fmt::format("it answers /trace with {}: {}", reply->status, printable(reply->body)));
}

void print_trace_summaries(const TraceFlags& flags, const TracedJob& traced,
                           const std::vector<timeline::ProcessSummary>& summaries) {
  for (const timeline::ProcessSummary& one : summaries) {
    fmt::print("{} at {}: {} spans, {} lost, clock within {:.3f} ms{}{}\n", one.label, one.address, one.spans, one.lost,
               static_cast<double>(one.clock_error) / static_cast<double>(kNsPerMs), one.trouble.empty() ? "" : "; ",
               printable(one.trouble));
  }
  for (const auto& [address, why] : traced.unanswered) fmt::print("{}: not in the file: {}\n", address, printable(why));
  fmt::print("timeline: {} (open it with Perfetto, or chrome://tracing)\n", flags.output);
}

void print_trace_json(const TraceFlags& flags, const TracedJob& traced,
                      const std::vector<timeline::ProcessSummary>& summaries) {
  nlohmann::json json = {{"output", flags.output}, {"job", flags.job}};
  json["processes"] = nlohmann::json::array();
  for (const timeline::ProcessSummary& one : summaries) {
    json["processes"].push_back({{"name", one.label},
                                 {"address", one.address},
                                 {"spans", one.spans},
                                 {"lost", one.lost},
                                 {"clock_error_us", static_cast<double>(one.clock_error) / 1e3},
                                 {"trouble", one.trouble}});
  }
  json["unanswered"] = nlohmann::json::array();
  for (const auto& [address, why] : traced.unanswered)
    json["unanswered"].push_back({{"address", address}, {"reason", why}});
  fmt::print("{}\n", program::json_text(json));
}

/// Fails where the file lacks a process: the file is there, and the exit code says that it is not whole.
Outcome judge(const TracedJob& traced, const std::vector<timeline::ProcessSummary>& summaries) {
  if (!traced.unanswered.empty()) {
    const auto& [address, why] = traced.unanswered.front();
    return fail_with(ExitCode::kUnreachable, fmt::format("{}: {}", address, printable(why)));
  }
  for (const timeline::ProcessSummary& one : summaries) {
    if (!one.trouble.empty())
      return fail_with(ExitCode::kUnreachable,
                       fmt::format("{} at {}: {}", one.label, one.address, printable(one.trouble)));
  }
  return {};
}

Outcome run_trace(const TraceFlags& flags) {
  if (Status can = files::try_to_write(flags.output); !can) return fail_with(can.error());
  const auto caller = monitoring::open_http_caller(flags.cluster.http_security, flags.cluster.addresses);
  if (!caller) return fail_with(caller.error());
  auto traced = find_job(flags, caller->get());
  if (!traced) return std::unexpected(traced.error());
  const program::InterruptionRequests& requests = program::interruption_requests();
  timeline::CollectOptions options;
  options.duration = TimeNs{flags.seconds} * kNsPerS;
  options.is_interrupted = [&requests] { return requests.count() > 0; };
  timeline::Timeline timeline;
  timeline.job = flags.job;
  timeline.collection =
      timeline::collect_traces(traced->addresses, options, [&](const std::string& address, const std::string& path) {
        return fetch_trace(address, path, flags.cluster.timeout_ms, caller->get());
      });
  note_jobs(ask(flags, traced->addresses, caller->get()), flags.job,
            *traced);  // a job that began again has another number
  timeline.job_numbers = traced->numbers;
  timeline.labels = traced->labels;
  const std::string text = timeline::chrome_trace(timeline);
  const std::vector<uint8_t> bytes(text.begin(), text.end());
  if (auto written = files::write_file_atomically(flags.output, bytes); !written) return fail_with(written.error());
  const std::vector<timeline::ProcessSummary> summaries = timeline::summaries_of(timeline);
  flags.json ? print_trace_json(flags, *traced, summaries) : print_trace_summaries(flags, *traced, summaries);
  return judge(*traced, summaries);
}

}  // namespace

program::Command add_trace_command(CLI::App& root) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* app =
      program::add_command(root, "trace", "writes the timeline of a job: the work of each process, and its time");
  app->option_defaults()->group("Job");
  app->add_option("job", flags->job, "name of the job")->required()->type_name("JOB")->check(program::not_empty());
  add_address_flags(*app, flags->cluster, "HTTP ports of shards, workers, ranks and switches: host:port (of --http)");
  app->option_defaults()->group("Output");
  app->add_option("--seconds", flags->seconds, "time that the timeline covers")
      ->check(program::in_range(1u, kTraceSecondsMax))
      ->capture_default_str();
  app->add_option("-o,--output", flags->output, "file of the timeline, in Chrome's trace format")
      ->required()
      ->type_name("FILE")
      ->check(program::not_empty());
  app->add_flag("--json", flags->json, "one JSON object as the last line: spans, losses and clock of each process");
  app->footer(
      "Spans: push, select, encode, send, decode and apply at workers; admit, decode, reduce, threshold, encode and "
      "send at\n"
      "shards; reduce at switches; select, encode, exchange and apply at ranks of millrace-peer. Shards are found by "
      "one of them,\n"
      "or by --table. A worker or a rank is found by the address of its --http alone (WorkerConfig::http), and one "
      "without such\n"
      "a port is not in the file.\n\n"
      "Processes record while they are asked. Each keeps the last 16,384 spans of a thread between two requests, and "
      "counts those\n"
      "that it has lost. The clocks of all processes are aligned to the clock here; the file says how exactly.\n\n"
      "Exit codes: 0 the file is there and whole; 2 usage; 4 a process does not answer, or no shard has the job open. "
      "Ctrl-C ends\n"
      "the timeline early.\n\n"
      "Examples:\n"
      "  millrace trace train 127.0.0.1:7700 127.0.0.1:9100 127.0.0.1:9101 -o trace.json\n"
      "  millrace trace train --table /var/lib/millrace/table.db worker0:9100 --seconds 30 -o trace.json");
  return {app, [flags] { return run_trace(*flags); }};
}

}  // namespace millrace::cli
