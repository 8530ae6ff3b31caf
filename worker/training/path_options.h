#pragma once

#include <cstdint>
#include <string>

#include "millrace/millrace.h"

namespace millrace::training {

/// Selects the processes that add up a job's contributions, in millrace.h's words.
struct PathOptions {
  std::string path = "server";
  uint32_t switch_job = 0;
  uint32_t switch_slots = 16;
  uint32_t switch_lanes = 1;
  uint32_t switch_packet_bytes = 1472;
  std::string switch_codec = "auto";
  uint32_t switch_return_after_ms = 5'000;
  std::string grid = "auto";
  std::string switch_key_file = {};
};

void set_path(const PathOptions& options, JobOptions& job);

}  // namespace millrace::training
