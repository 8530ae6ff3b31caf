#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// The members that a step of a job in mode partial is waited for: all, or spec.participants of them, drawn by the
/// job's seed and the step (federated training: a sample of the clients takes part). protocol/wire/layout.md has the
/// draw; workers and shards make it alone, of the same view.
///
/// members  by worker, ascending; those that are joining are never among them
/// Returns  worker numbers, ascending; all synced members where the job draws none or not fewer than there are.
std::vector<uint32_t> participants_of(const JobSpec& spec, std::span<const Member> members, uint64_t step);

/// Whether `worker` is one of them.
bool takes_part(const JobSpec& spec, std::span<const Member> members, uint64_t step, uint32_t worker);

}  // namespace millrace::protocol
