#pragma once

#include <concepts>
#include <type_traits>

#include "monitoring/status/shard_status.h"

/// The fields of /status, once, in their order in the JSON. Its writer and its reader are visitors over these lists.
///
/// A visitor has field(key, value) for texts, numbers, flags, lists and records; an optional record without a value is
/// left out. It has unless_empty(key, value) for a value that is left out where it is empty. It has
/// derived(key, number) for a number that only the writer needs.
namespace millrace::monitoring {

template <typename T, typename Record>
concept Is = std::same_as<std::remove_const_t<T>, Record>;

void visit_fields(auto& v, Is<MemberStatus> auto& one) {
  v.field("worker", one.worker);
  v.field("incarnation", one.incarnation);
  v.field("joining", one.joining);
  v.field("connected", one.connected);
  v.field("finishing", one.finishing);
  v.field("silent_ms", one.silent_ms);
  v.field("steps_applied", one.steps_applied);
  v.field("steps_behind", one.steps_behind);
  v.field("contribution_bytes", one.contribution_bytes);
  v.field("dense_bytes", one.dense_bytes);
}

void visit_fields(auto& v, Is<DisagreementStatus> auto& one) {
  v.field("worker", one.worker);
  v.field("part", one.part);
  v.field("steps", one.steps);
  v.field("since_ms", one.since_ms);
}

void visit_fields(auto& v, Is<StoreStatus> auto& store) {
  v.field("optimizer", store.optimizer);
  v.field("ready", store.ready);
  v.field("bytes", store.bytes);
  v.field("steps_applied", store.steps_applied);
  v.field("survives_restart", store.survives_restart);
  v.field("pulls_waiting", store.pulls_waiting);
  v.field("saves_written", store.saves_written);
  v.field("saves_failed", store.saves_failed);
  v.field("saved_steps", store.saved_steps);
  v.field("last_failure", store.last_failure);
}

void visit_fields(auto& v, Is<AuditStatus::Worker> auto& one) {
  v.field("worker", one.worker);
  v.field("entered", one.entered);
  v.field("carried", one.carried);
  v.field("lost", one.lost);
  v.field("held", one.in_residual);
  v.field("imbalance", one.imbalance);
}

void visit_fields(auto& v, Is<AuditStatus> auto& audit) {
  v.field("entered", audit.entered);
  v.field("carried", audit.carried);
  v.field("lost", audit.lost);
  v.field("held", audit.in_residual);
  v.derived("imbalance", audit.imbalance());
  v.field("updates_imbalance", audit.updates_imbalance);
  v.field("workers", audit.workers);
}

void visit_fields(auto& v, Is<CodecStatus> auto& one) {
  v.field("part", one.part);
  v.field("tensor", one.tensor);
  v.field("codec", one.why);
  v.field("changes", one.changes);
}

void visit_fields(auto& v, Is<SwitchPathStatus::SwitchReport> auto& one) {
  v.field("worker", one.worker);
  v.field("says", one.says);
}

void visit_fields(auto& v, Is<SwitchPathStatus::MemberWait> auto& one) {
  v.field("worker", one.worker);
  v.field("waits_for", one.waits_for);
  v.field("since_ms", one.since_ms);
  v.field("steps", one.steps);
}

void visit_fields(auto& v, Is<AggregatorStatus> auto& at) {
  v.field("phase", at.phase);
  v.field("epoch", at.epoch);
  v.field("slots", at.slots);
  v.field("turns", at.closed);
  v.field("datagrams", at.received);
  v.field("resent", at.resent);
  v.field("rejected", at.rejected);
  v.field("memory_bytes", at.memory_bytes);
  v.field("bytes", at.received_bytes);
  v.field("racks", at.racks);
  v.field("groups", at.groups);
  v.field("waiting_for", at.waiting_for);
  v.field("blocked_on", at.waited_for);
  v.field("waiting_ms", at.waiting_ms);
  v.field("waiting_because", at.waiting_because);
  v.field("events", at.events);
}

void visit_fields(auto& v, Is<SwitchPathStatus> auto& path) {
  v.field("decided_by", path.decided_by);
  v.field("switch", path.switch_address);
  v.field("datagrams", path.datagrams);
  v.field("because", path.because);
  v.field("since_ms", path.since_ms);
  v.field("changes", path.changes);
  v.field("said", path.reports);
  v.field("switch_job", path.switch_job);
  v.field("moved_ms", path.moved_ms);
  v.field("waits", path.waits);
  v.field("aggregator", path.aggregator);
}

void visit_fields(auto& v, Is<WaitingStep> auto& at) {
  v.field("bucket", at.bucket);
  v.field("part", at.part);
  v.field("step", at.step);
  v.field("contributions", at.here);
}

void visit_fields(auto& v, Is<JobStatus> auto& job) {
  v.field("name", job.name);
  v.field("job", job.job);
  v.field("epoch", job.epoch);
  v.field("started", job.started);
  v.field("recovering", job.recovering);
  v.field("log_branch", job.branch);
  v.field("mode", job.mode);
  v.field("workers", job.workers);
  v.field("waiting_because", job.waiting_because);
  v.field("waiting_for", job.waiting_for);
  v.field("blocked_on", job.waited_for);
  v.field("waiting_shards", job.waiting_shards);
  v.field("waiting_ms", job.waiting_ms);
  v.field("decided_in_ms", job.decided_in_ms);
  v.field("moved_ms", job.moved_ms);
  v.field("parts", job.parts);
  v.field("steps_decided", job.steps_decided);
  v.field("steps_decided_max", job.steps_decided_max);
  v.field("quorum", job.quorum);
  v.field("deadline_ms", job.deadline_ms);
  v.field("heartbeat_ms", job.heartbeat_ms);
  v.field("dead_after_ms", job.dead_after_ms);
  v.field("kept_updates", job.retained_updates);
  v.field("kept_bytes", job.retained_bytes);
  v.field("memory_bytes", job.memory_bytes);
  v.field("memory_bytes_max", job.memory_bytes_max);
  v.field("waiting_step", job.waiting_step);
  v.field("store", job.store);
  v.field("switch_path", job.switch_path);
  v.field("audit", job.audit);
  v.unless_empty("codecs_down", job.codecs);
  v.field("disagreements", job.disagreements);
  v.field("members", job.members);
}

void visit_fields(auto& v, Is<PeerShardStatus> auto& peer) {
  v.field("shard", peer.shard);
  v.field("address", peer.address);
  v.field("incarnation", peer.incarnation);
  v.field("said_hello", peer.heard);
}

void visit_fields(auto& v, Is<RefusalStatus> auto& one) {
  v.field("refused", one.of);
  v.field("number", one.number);
  v.field("job", one.job);
  v.field("code", one.code);
  v.field("sentence", one.sentence);
  v.field("count", one.count);
  v.field("first_ms", one.first_ms);
  v.field("last_ms", one.last_ms);
  v.field("software", one.software);
}

void visit_fields(auto& v, Is<EndedJobStatus> auto& one) {
  v.field("name", one.name);
  v.field("job", one.job);
  v.field("how", one.how);
  v.field("sentence", one.sentence);
  v.field("since_ms", one.since_ms);
}

void visit_fields(auto& v, Is<TableFailuresStatus> auto& failures) {
  v.field("code", failures.code);
  v.field("count", failures.count);
  v.field("first_ms", failures.first_ms);
  v.field("last_ms", failures.last_ms);
}

void visit_fields(auto& v, Is<KeysStatus> auto& keys) {
  v.field("allowed", keys.allowed);
  v.field("skipped_files", keys.skipped_files);
  v.field("first_end_s", keys.first_end_s);
}

void visit_fields(auto& v, Is<StatusReport> auto& report) {
  v.field("shard", report.shard);
  v.field("shard_count", report.shard_count);
  v.field("incarnation", report.incarnation);
  v.field("address", report.address);
  v.field("software", report.software);
  v.field("table", report.table);
  v.field("shutting_down", report.shutting_down);
  v.field("leaving", report.leaving);
  v.field("memory_bytes", report.memory_bytes);
  v.field("memory_bytes_max", report.memory_bytes_max);
  v.unless_empty("table_error", report.table_error);
  v.field("table_failures", report.table_failures);
  v.field("keys", report.keys);
  v.unless_empty("datagrams_dropped", report.datagrams_dropped);
  v.field("jobs", report.jobs);
  v.field("other_shards", report.peers);
  v.field("refusals", report.refusals);
  v.field("ended_jobs", report.ended);
}

void visit_fields(auto& v, Is<SwitchJobStatus> auto& job) {
  v.field("job", job.job);
  v.field("role", job.role);
  v.field("waiting_because", job.waiting_because);
}

}  // namespace millrace::monitoring
