#pragma once

#include <cstdint>

#include "protocol/datagram/header.h"

/// A job is on one lane; one of several lanes has as many numbers, one behind the other, and so is on as many
/// (split_by_lanes.h).
namespace millrace::switch_agg {

/// The lane, of `lanes`, that has a job.
constexpr uint32_t lane_of_job(uint32_t job, uint32_t lanes) { return job % lanes; }

/// The lane whose job a datagram says it is of; of what is too short to say one: the first. Nothing of it is verified.
inline uint32_t lane_of_datagram(ByteSpan datagram, uint32_t lanes) {
  return lane_of_job(protocol::job_number_of(datagram).value_or(0), lanes);
}

}  // namespace millrace::switch_agg
