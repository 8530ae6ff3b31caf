#pragma once

#include "protocol/job/job_spec.h"

namespace millrace::protocol {

/// The grid of a reproducible job that names none. The bits depend on the grid, so it is one for shards, peers and
/// switch. Its sums fit a switch's packets of one turn on every path that a job can have, for any number of workers.
inline constexpr GridSpec kReproducibleGrid{.block_indices = 4096, .exponent_initial = -20};

/// Returns the most indices of a block that a reproducible job over a switch can have: all sums of a window fit its
/// result's packets.
/// packet_bytes_max  as validate() has it.
uint32_t reproducible_block_max(uint32_t packet_bytes_max);

/// Checks a grid. Errors  invalid_argument: a block or an exponent outside its range.
Status check_grid(const GridSpec& grid);

/// Refuses fields that a reproducible job may not have, each with its reason. validate() calls it on an otherwise valid
/// specification.
Status check_reproducible(const JobSpec& spec);

}  // namespace millrace::protocol
