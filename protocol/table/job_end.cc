#include "protocol/table/job_end.h"

#include "kernels/base/plain_text.h"
#include "protocol/base/limits.h"

namespace millrace::protocol {

void end_record(JobRecord& record, const Error& why) {
  record.membership.finished = true;
  record.finished = {};
  give_end_reason(record, why);
}

void give_end_reason(JobRecord& record, const Error& why) {
  record.end_reason = plain_text_of(why.message, kSentenceBytesMax);
  record.end_code = why.code;
}

}  // namespace millrace::protocol
