#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// Returns the members that a step of a job in mode partial waits for: all, or spec.participants of them. The latter
/// are drawn by the job's seed and the step (federated training: a sample of the clients takes part).
/// protocol/wire/layout.md has the draw; workers and shards make it alone, from the same membership.
///
/// members  by worker, ascending; joining ones are never drawn.
/// Returns  worker numbers, ascending; all synced members where the job draws none or not fewer than there are.
std::vector<uint32_t> participants_of(const JobSpec& spec, std::span<const Member> members, uint64_t step);

/// Returns whether `worker` is one of them.
bool takes_part(const JobSpec& spec, std::span<const Member> members, uint64_t step, uint32_t worker);

}  // namespace millrace::protocol
