#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/base/result.h"
#include "kernels/stream/stream.h"
#include "millrace/options.h"
#include "worker/bench/rounds/serve_oracle.h"

namespace millrace::bench {

/// Judges an update that came by a switch. Its entries are of the round's sum, within the rounding of a grid of 16 bits
/// over all. They are about k (the threshold is that of the round before, whose inputs are of the same distribution).
/// They are the largest: hardly any entry is missing that is well over the k-th largest. The first round of a job has
/// the whole sum.
///
/// Source   switch_agg/aggregator/DESIGN.md, "Re-selection".
ServeVerdict judge_switch_update(const ServeJob& job, uint32_t round, const StreamView& update);

/// Reads "INDICES:EXPONENT".
Result<Grid> grid_of(std::string_view text);

/// Refuses texts that the two others do not read.
Status check_switch_texts(std::string_view grid, std::string_view codec);

/// Reads the codec of datagrams; empty: "auto".
Result<std::optional<SwitchCodec>> switch_codec_of(std::string_view text);

/// Returns the indices of a block, of a grid's text as a session reads it ("65536:-12"); 0: it is none.
uint32_t grid_block(std::string_view grid);

}  // namespace millrace::bench
