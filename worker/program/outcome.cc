#include "worker/program/outcome.h"

namespace millrace::program {

std::string exit_code_table() {
  return "Exit codes:\n"
         "  0  done\n"
         "  1  a fault of Millrace itself\n"
         "  2  usage: a flag is unknown, missing or out of range\n"
         "  3  bad data: a file is malformed, truncated or empty, or a gradient is not finite\n"
         "  4  a server cannot be reached\n"
         "  5  the servers refuse the job or this worker; the sentence says why\n"
         "  6  a file cannot be read or written\n"
         "  7  interrupted (SIGINT, SIGTERM, SIGHUP)\n"
         "  8  the job ended early: a shard was lost, too few workers are left, a time ran out\n"
         "  9  status: a job is stalled\n"
         "  10 status: a job waits for its start\n"
         "  11 status: workers of a job have applied other updates than the shards decided\n"
         "  12 status: a job's audit has a mismatch\n"
         "  13 doctor: a check found a problem\n"
         "  130, 143  serve: a second SIGINT, SIGTERM did not wait for rounds in flight\n";
}

Failure failure_of(const Error& error, ErrorPlace place) {
  return {monitoring::exit_code_of(error.code, place), error.message};
}

}  // namespace millrace::program
