#pragma once

#include <cstdint>
#include <optional>

namespace millrace::protocol {

/// The numbers that a job has at its aggregator: one for each lane, from `job` on.
/// REQUIRES: lanes >= 1, and job + lanes - 1 fits.
struct JobNumbers {
  uint32_t job = 0;
  uint32_t lanes = 1;

  /// Returns the lane of that number; nothing: it is none of this job's.
  constexpr std::optional<uint32_t> lane_of(uint32_t number) const {
    const uint32_t lane = number - job;  // below the job's: a large one
    return lane < lanes ? std::optional(lane) : std::nullopt;
  }
  constexpr bool overlap(const JobNumbers& other) const { return lane_of(other.job) || other.lane_of(job); }
};

}  // namespace millrace::protocol
