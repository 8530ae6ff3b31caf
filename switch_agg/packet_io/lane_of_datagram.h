#pragma once

#include <cstdint>

#include "protocol/datagram/header.h"

/// A job is on one lane; one of several lanes has as many numbers, one behind the other, and so is on as many
/// (split_by_lanes.h).
namespace millrace::switch_agg {

/// Returns the lane, of `lanes`, that has a job.
constexpr uint32_t lane_of_job(uint32_t job, uint32_t lanes) { return job % lanes; }

/// Returns the lane of the job that a datagram names; the first lane where it is too short for a job number. Verifies
/// nothing.
inline uint32_t lane_of_datagram(ByteSpan datagram, uint32_t lanes) {
  return lane_of_job(protocol::job_number_of(datagram).value_or(0), lanes);
}

}  // namespace millrace::switch_agg
