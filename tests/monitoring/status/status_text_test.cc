#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "monitoring/status/status_json.h"

/// The text of /status, literally: two exchanged keys differ from it. Each field has a value of its own.
namespace millrace::monitoring {
namespace {

StoreStatus store_of_distinct_values() {
  return {.optimizer = "adam:0.5",
          .ready = true,
          .bytes = 124,
          .steps_applied = 125,
          .survives_restart = false,
          .pulls_waiting = 126,
          .saves_written = 127,
          .saves_failed = 128,
          .saved_steps = 129,
          .last_failure = "disk full"};
}

AuditStatus audit_of_distinct_values() {
  return {.entered = 1.5,
          .carried = -2.5,
          .lost = 3.5,
          .in_residual = 4.5,
          .updates_imbalance = 6.0,
          .workers = {
              {.worker = 130, .entered = 7.5, .carried = -8.5, .lost = 9.5, .in_residual = 10.5, .imbalance = 0.25}}};
}

SwitchPathStatus switch_path_of_distinct_values() {
  return {.decided_by = "server",
          .switch_address = "192.0.2.7:7700",
          .datagrams = "192.0.2.8:7701",
          .because = "no answer",
          .since_ms = 116,
          .changes = 117,
          .reports = {{.worker = 118, .says = "silent"}},
          .switch_job = 119,
          .waits = {{.worker = 121, .waits_for = "answer", .since_ms = 122, .steps = 123}},
          .moved_ms = 120,
          .aggregator = AggregatorStatus{.phase = "collecting",
                                         .epoch = 101,
                                         .slots = 102,
                                         .memory_bytes = 107,
                                         .received = 104,
                                         .received_bytes = 108,
                                         .racks = 109,
                                         .groups = 110,
                                         .closed = 103,
                                         .resent = 105,
                                         .rejected = 106,
                                         .events = {{"dropped", 114}, {"late", 115}},
                                         .waiting_for = "greetings",
                                         .waited_for = {111, 112},
                                         .waiting_ms = 113,
                                         .waiting_because = "worker 3 is silent"}};
}

JobStatus job_of_distinct_values() {
  JobStatus job;
  job.name = "linear";
  job.job = 131;
  job.epoch = 132;
  job.started = true;
  job.mode = "partial";
  job.workers = 134;
  job.quorum = 144;
  job.deadline_ms = 145;
  job.heartbeat_ms = 146;
  job.dead_after_ms = 147;
  job.recovering = false;
  job.branch = 133;
  job.members = {{.worker = 162,
                  .incarnation = 163,
                  .joining = true,
                  .connected = false,
                  .finishing = false,
                  .silent_ms = 164,
                  .steps_applied = 165,
                  .steps_behind = 166,
                  .contribution_bytes = 191,
                  .dense_bytes = 192},
                 {.worker = 167,
                  .incarnation = 168,
                  .joining = false,
                  .connected = true,
                  .finishing = false,
                  .silent_ms = 169,
                  .steps_applied = 170,
                  .steps_behind = 171,
                  .contribution_bytes = 193,
                  .dense_bytes = 194}};
  job.disagreements = {{.worker = 158, .part = 159, .steps = 160, .since_ms = 161}};
  job.parts = 141;
  job.steps_decided = 142;
  job.steps_decided_max = 143;
  job.moved_ms = 140;
  job.waiting_for = "contributions";
  job.waited_for = {135, 136};
  job.waiting_shards = {137};
  job.waiting_ms = 138;
  job.waiting_because = "worker 2 has sent nothing";
  job.waiting_step = WaitingStep{.bucket = 152, .part = 153, .step = 154, .here = 155};
  job.decided_in_ms = 139;
  job.retained_updates = 148;
  job.retained_bytes = 149;
  job.memory_bytes = 150;
  job.memory_bytes_max = 151;
  job.store = store_of_distinct_values();
  job.audit = audit_of_distinct_values();
  job.switch_path = switch_path_of_distinct_values();
  job.codecs = {{.part = 156, .tensor = "tensor 'w'", .why = "gap+raw", .changes = 157}};
  return job;
}

StatusReport report_of_distinct_values() {
  StatusReport report;
  report.shard = 1;
  report.shard_count = 3;
  report.incarnation = 172;
  report.address = "tcp://192.0.2.1:7600";
  report.software = "millrace 1";
  report.table = "/var/lib/millrace/table";
  report.shutting_down = true;
  report.leaving = true;
  report.memory_bytes = 173;
  report.memory_bytes_max = 174;
  report.jobs = {job_of_distinct_values()};
  report.peers = {{.shard = 180, .address = "tcp://192.0.2.2:7600", .incarnation = 181, .heard = true}};
  report.refusals = {{.of = "worker",
                      .job = "other",
                      .number = 182,
                      .software = "millrace 0",
                      .code = "conflict",
                      .sentence = "another process is worker 5",
                      .count = 183,
                      .first_ms = 184,
                      .last_ms = 185}};
  report.ended = {
      {.name = "old", .job = 186, .how = "too_few_workers", .sentence = "2 of 4 workers live", .since_ms = 187}};
  report.datagrams_dropped = {{"no_job", 178}, {"short", 179}};
  report.table_error = "the table does not answer";
  report.table_failures = TableFailuresStatus{.code = "timeout", .count = 175, .first_ms = 176, .last_ms = 177};
  report.keys = KeysStatus{.allowed = 193, .skipped_files = 194, .first_end_s = 195};
  return report;
}

constexpr std::string_view kText =
    R"({"shard":1,"shard_count":3,"incarnation":172,"address":"tcp://192.0.2.1:7600","software":"millrace 1",
"table":"/var/lib/millrace/table","shutting_down":true,"leaving":true,"memory_bytes":173,"memory_bytes_max":174,
"table_error":"the table does not answer","table_failures":{"code":"timeout","count":175,"first_ms":176,"last_ms":177},
"keys":{"allowed":193,"skipped_files":194,"first_end_s":195},
"datagrams_dropped":{"no_job":178,"short":179},"jobs":[{"name":"linear","job":131,"epoch":132,"started":true,
"recovering":false,"log_branch":133,"mode":"partial","workers":134,"waiting_because":"worker 2 has sent nothing",
"waiting_for":"contributions","blocked_on":[135,136],"waiting_shards":[137],"waiting_ms":138,"decided_in_ms":139,
"moved_ms":140,"parts":141,"steps_decided":142,"steps_decided_max":143,"quorum":144,"deadline_ms":145,
"heartbeat_ms":146,"dead_after_ms":147,"kept_updates":148,"kept_bytes":149,"memory_bytes":150,
"memory_bytes_max":151,"waiting_step":{"bucket":152,"part":153,"step":154,"contributions":155},
"store":{"optimizer":"adam:0.5","ready":true,"bytes":124,"steps_applied":125,"survives_restart":false,
"pulls_waiting":126,"saves_written":127,"saves_failed":128,"saved_steps":129,"last_failure":"disk full"},
"switch_path":{"decided_by":"server","switch":"192.0.2.7:7700","datagrams":"192.0.2.8:7701","because":"no answer",
"since_ms":116,"changes":117,"said":[{"worker":118,"says":"silent"}],"switch_job":119,"moved_ms":120,
"waits":[{"worker":121,"waits_for":"answer","since_ms":122,"steps":123}],"aggregator":{"phase":"collecting",
"epoch":101,"slots":102,"turns":103,"datagrams":104,"resent":105,"rejected":106,"memory_bytes":107,"bytes":108,
"racks":109,"groups":110,"waiting_for":"greetings","blocked_on":[111,112],"waiting_ms":113,
"waiting_because":"worker 3 is silent","events":{"dropped":114,"late":115}}},"audit":{"entered":1.5,"carried":-2.5,
"lost":3.5,"held":4.5,"imbalance":6.25,"updates_imbalance":6.0,"workers":[{"worker":130,"entered":7.5,
"carried":-8.5,"lost":9.5,"held":10.5,"imbalance":0.25}]},"codecs_down":[{"part":156,"tensor":"tensor 'w'",
"codec":"gap+raw","changes":157}],"disagreements":[{"worker":158,"part":159,"steps":160,"since_ms":161}],
"members":[{"worker":162,"incarnation":163,"joining":true,"connected":false,"finishing":false,"silent_ms":164,
"steps_applied":165,"steps_behind":166,"contribution_bytes":191,"dense_bytes":192},{"worker":167,"incarnation":168,
"joining":false,"connected":true,"finishing":false,"silent_ms":169,"steps_applied":170,"steps_behind":171,
"contribution_bytes":193,"dense_bytes":194}]}],"other_shards":[{"shard":180,
"address":"tcp://192.0.2.2:7600","incarnation":181,"said_hello":true}],"refusals":[{"refused":"worker","number":182,
"job":"other","code":"conflict","sentence":"another process is worker 5","count":183,"first_ms":184,"last_ms":185,
"software":"millrace 0"}],"ended_jobs":[{"name":"old","job":186,"how":"too_few_workers",
"sentence":"2 of 4 workers live","since_ms":187}]})";

TEST(StatusText, TheReportIsThisText) {
  std::string text(kText);
  std::erase(text, '\n');
  EXPECT_EQ(status_json(report_of_distinct_values()), text);
  const auto read = read_status(nlohmann::json::parse(text));
  ASSERT_TRUE(read);
  EXPECT_EQ(status_json(*read), text);
}

}  // namespace
}  // namespace millrace::monitoring
