#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/stream/stream.h"
#include "worker/bench/rounds/serve_oracle.h"

namespace millrace::cli {

/// Judges an update that came by a switch: entries are of the round's sum, within what a grid of 16 bits rounds off
/// over all; about k of them (the threshold is that of the round before, whose inputs are of the same distribution),
/// and the largest: of the entries that are well over the k-th largest hardly any is missing. The first round of a job
/// has the whole sum.
///
/// Source   switch_agg/aggregator/DESIGN.md, "Re-selection".
ServeVerdict judge_switch_update(const ServeJob& job, uint32_t round, const StreamView& update);

/// Indices of a block, of a grid's words as a session reads them ("65536:-12"); 0: they are none.
uint32_t grid_block(std::string_view grid);

}  // namespace millrace::cli
