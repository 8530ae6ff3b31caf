#pragma once

#include <cstdint>
#include <string>
#include <variant>

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

/// Returns the switch's options. REQUIRES: the job's path is a switch.
inline const SwitchPath& switch_of(const JobConfig& job) { return std::get<SwitchPath>(job.path); }

/// Returns the text of its codec: "gap+fixed16".
std::string switch_codec_text(const JobConfig& job);

}  // namespace millrace::bench
