#include "worker/training/path_options.h"

namespace millrace::training {

void set_path(const PathOptions& options, JobOptions& job) {
  job.path = options.path;
  job.switch_job = options.switch_job;
  job.switch_slots = options.switch_slots;
  job.switch_lanes = options.switch_lanes;
  job.switch_packet_bytes = options.switch_packet_bytes;
  job.switch_codec = options.switch_codec;
  job.switch_return_after_ms = options.switch_return_after_ms;
  job.grid = options.grid;
  job.switch_key_file = options.switch_key_file;
}

}  // namespace millrace::training
