#include "protocol/table/job_end.h"

#include <optional>

#include "kernels/base/plain_text.h"
#include "protocol/base/limits.h"

namespace millrace::protocol {
namespace {

/// Each lost swap is another change of the job's membership; a run has few.
constexpr int kEndSwapsMax = 100;

}  // namespace

void end_record(JobRecord& record, const Error& why) {
  record.membership.finished = true;
  record.finished = {};
  give_end_reason(record, why);
}

void give_end_reason(JobRecord& record, const Error& why) {
  record.end_reason = plain_text_of(why.message, kSentenceBytesMax);
  record.end_code = why.code;
}

Result<JobEnd> end_job(MembershipTable& table, std::string_view job, const Error& why) {
  Result<std::optional<JobRecord>> record = table.read_job(job);
  for (int swaps = 0; swaps < kEndSwapsMax; ++swaps) {
    if (!record) return std::unexpected(record.error());
    if (!*record) return JobEnd::kNotOpen;
    JobRecord& next = **record;
    if (next.membership.finished) return JobEnd::kEnded;
    const uint64_t epoch = next.membership.epoch++;
    end_record(next, why);
    const Result<bool> swapped = table.compare_and_swap(epoch, next);
    if (!swapped) return std::unexpected(swapped.error());
    if (*swapped) return JobEnd::kEnded;
    record = table.read_job(next.membership.job);  // by number: the next job of that name is another one
  }
  return JobEnd::kChanging;
}

}  // namespace millrace::protocol
