#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace millrace::cluster_status {

/// Holds one shard's /status as values. Another process wrote it: a field that is missing or of another type reads as
/// 0, empty or false, and texts are made printable. Fields are those of server/status/status_report.h; times are ages
/// in seconds.
struct MemberStatusView {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  bool connected = false;
  bool finishing = false;
  double silent_s = 0;
  uint64_t steps_behind = 0;
};

struct WaitView {
  /// "join", "hello", "contributions", "deadline", "magnitudes", "store", "acknowledgements", "memory",
  /// "computing"; empty: nothing
  std::string kind;
  std::string because;
  std::vector<uint32_t> workers;
  std::vector<uint32_t> shards;
  double seconds = 0;
  double decided_in_s = 0;
  bool has_step = false;  ///< the next four are of an open step
  uint64_t bucket = 0;
  uint64_t part = 0;
  uint64_t step = 0;
  uint64_t contributions = 0;
};

struct DisagreementView {
  uint32_t worker = 0;
  uint64_t part = 0;
  uint64_t steps = 0;
  double since_s = 0;
};

/// Holds the values of an audited job.
struct AuditView {
  double entered = 0;
  double carried = 0;
  double lost = 0;
  double held = 0;
  double imbalance = 0;  ///< of its updates, and of its workers' books as they say
};

/// Describes the reason why a worker of a job of path switch is blocked, as the worker reports it.
struct PathWaitView {
  uint32_t worker = 0;
  std::string waits_for;  ///< "nothing", "answer", "greetings", "contributions", "other_job"
  double since_s = 0;
  uint64_t steps = 0;
};

/// Holds the values of a job of path switch.
struct PathStatusView {
  std::string decided_by;  ///< "switch", "server"
  std::string switch_address;
  std::string datagrams;  ///< where shard 0 replaces it; empty: nowhere
  std::string because;    ///< shard 0 alone knows
  double since_s = 0;
  uint64_t changes = 0;
  std::vector<uint32_t> silent_to;  ///< workers that do not hear the switch
  std::vector<uint32_t> answered;   ///< workers that hear it again
  uint64_t switch_job = 0;          ///< its number at the switch
  double moved_s = 0;               ///< since a step was over at some worker
  std::vector<PathWaitView> waits;  ///< shard 0 alone knows
  std::string shard_waits;          ///< where shard 0 decides: the workers on which it is blocked, and why; empty: none
};

/// Describes a job at a millrace-switch, from its /status.
struct SwitchJobView {
  std::string address;  ///< of the switch, for datagrams
  uint64_t job = 0;     ///< its number on the wire
  std::string role;
  std::string waiting_because;  ///< empty: it waits for nothing, and rejects nothing
};

struct JobStatusView {
  std::string name;
  uint64_t job = 0;
  uint64_t epoch = 0;
  bool started = false;
  std::string mode;
  uint32_t workers = 0;
  uint64_t quorum = 0;
  double deadline_s = 0;
  double heartbeat_s = 0;
  double dead_after_s = 0;
  uint64_t parts = 0;
  uint64_t steps_decided = 0;
  double moved_s = 0;
  uint64_t memory_bytes = 0;
  uint64_t memory_bytes_max = 0;
  WaitView wait;
  std::vector<MemberStatusView> members;
  std::vector<DisagreementView> disagreements;
  std::optional<AuditView> audit;
  std::optional<PathStatusView> path;
};

struct PeerStatusView {
  uint32_t shard = 0;
  std::string address;
  bool has_sent_hello = false;
};

struct RefusalView {
  std::string of;  ///< "worker", "contribution", "shard", "by_shard", "unreadable"
  std::string job;
  uint32_t number = 0;
  std::string software;
  std::string code;
  std::string sentence;
  uint64_t count = 0;
  double first_s = 0;
  double last_s = 0;
};

struct EndedJobView {
  std::string name;
  uint64_t job = 0;
  std::string how;
  std::string sentence;
  double since_s = 0;
};

struct ShardStatusView {
  uint32_t shard = 0;
  uint32_t shard_count = 0;
  uint64_t incarnation = 0;
  std::string address;
  std::string software;
  std::string table;
  bool shutting_down = false;
  uint64_t memory_bytes = 0;
  uint64_t memory_bytes_max = 0;
  std::string table_error;
  double table_error_s = 0;  ///< since it fails
  std::vector<JobStatusView> jobs;
  std::vector<PeerStatusView> peers;
  std::vector<RefusalView> refusals;
  std::vector<EndedJobView> ended;
};

/// Maximum length of a list of workers; members and jobs have a shard's limits.
inline constexpr size_t kStatusListMax = 4'096;

/// Reads a shard's status. Empty: this is another one (a worker's, say).
std::optional<ShardStatusView> parse_status(const nlohmann::json& status);
/// Returns the jobs of a switch's status; of any other, none.
std::vector<SwitchJobView> read_switch_jobs(const nlohmann::json& status);

}  // namespace millrace::cluster_status
