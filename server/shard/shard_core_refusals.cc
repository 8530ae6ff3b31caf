#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "server/shard/shard_core.h"

/// Answers Hellos that are not admitted: by a Refuse, or by the Abort of the job that has ended.
namespace millrace::server {
namespace {

/// Returns whether the same Hello can be welcome later, with nothing changed on the worker's side.
bool worth_retrying(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kIo || code == ErrorCode::kTimeout;
}

/// REQUIRES: the answer is an Abort or a Refuse.
Error reason_of(const protocol::Body& answer) {
  if (const auto* abort = std::get_if<protocol::Abort>(&answer)) return {abort->code, abort->sentence};
  const auto& refusal = std::get<protocol::Refuse>(answer);
  return {refusal.code, refusal.sentence};
}

}  // namespace

void ShardCore::refuse_hello(const protocol::PeerId& from, const protocol::Header& header, const protocol::Hello& hello,
                             const Error& why, TimeNs now, Actions& actions) {
  protocol::Refuse refusal;
  refusal.code = why.code;
  refusal.sentence = why.message;
  // A process that returns waits until its earlier process counts as dead. Others wait where the job may have only
  // dead workers.
  Job* job = named(hello.spec.name);
  const bool may_pass = hello.returns || (job && job->recovering());
  refusal.retry = worth_retrying(why.code) || (why.code == ErrorCode::kIdentityInUse && may_pass);
  // Only the table can be malformed here: to the worker that is trouble with a file of the shard, not a damaged
  // message.
  if (refusal.code == ErrorCode::kMalformed) refusal.code = ErrorCode::kIo;
  // Nothing but the table takes its time, or has a file.
  if (refusal.code == ErrorCode::kTimeout || refusal.code == ErrorCode::kIo) note_table_trouble(why);
  turn_away(from, header, hello, std::move(refusal), now, actions);
}

/// Records and sends the answer to a Hello that is not admitted.
void ShardCore::turn_away(const protocol::PeerId& from, const protocol::Header& header, const protocol::Hello& hello,
                          protocol::Body answer, TimeNs now, Actions& actions) {
  const Error why = reason_of(answer);
  const std::string_view code = error_code_name(why.code);
  log(Severity::kWarning, fmt::format("refused worker {} of job '{}': {}", header.worker, hello.spec.name, why.message),
      actions);
  refusals_.note({.of = Refusal::Of::kWorker,
                  .job = hello.spec.name,
                  .number = header.worker,
                  .software = hello.software,
                  .code = why.code,
                  .sentence = why.message},
                 now);
  actions.audit.push_back({.what = AuditEvent::What::kRefuse,
                           .by = from,
                           .job = hello.spec.name,
                           .worker = header.worker,
                           .code = std::string(code),
                           .sentence = why.message});
  count(Metric::kRefused, code, actions);
  count(Metric::kWorkerHandshakes, "refused", actions);
  reply(from, header, std::move(answer), actions);
}

/// Returns the end of the job that a refused Hello names, so that its worker ends as the members did: with the same
/// message. The reason of the refusal does not matter then. Otherwise returns the refusal.
///
/// number   of the Hello's header; 0: it names no job.
/// Errors   the refusal; the table's, where it cannot say whether the job has ended and the refusal is final.
Result<ShardCore::Admitted> ShardCore::end_or_refusal(uint64_t number, const std::string& name, const Error& refusal) {
  if (number == 0) return std::unexpected(refusal);
  const Result<std::optional<protocol::JobRecord>> record = table_.read_job(number);
  if (!record) return std::unexpected(worth_retrying(refusal.code) ? refusal : record.error());
  if (!*record || !(*record)->membership.finished || (*record)->name != name) return std::unexpected(refusal);
  if ((*record)->end_reason.empty()) return fail(ErrorCode::kNotAMember, end_sentence(**record));
  return Admitted{.ended = end_abort(**record)};
}

}  // namespace millrace::server
