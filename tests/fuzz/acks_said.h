#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <variant>

#include "kernels/base/check.h"
#include "protocol/job/job_spec.h"
#include "protocol/messages/messages.h"

namespace millrace::testing {

/// Records the acknowledgements of workers per part, and checks the acknowledgements that a shard reports against them.
class AcksSaid {
 public:
  /// Records a message that any sender delivers to the shard, under any identity.
  void heard(const protocol::Message& message) {
    if (const auto* ack = std::get_if<protocol::Ack>(&message.body)) {
      for (const protocol::Ack::Entry& entry : ack->entries) note(message.header, entry.part, entry.n);
    } else if (const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message.body)) {
      note(message.header, kAllParts, heartbeat->steps_applied);
    } else if (const auto* state = std::get_if<protocol::State>(&message.body)) {
      for (const protocol::State::Part& one : state->parts) note(message.header, one.part, one.n);
    }
  }

  /// Checks a message from the shard to a worker of a job with `spec`, in which all workers must have applied an
  /// update. Once workers have finished and left, the remaining members suffice.
  void check(const protocol::JobSpec& spec, const protocol::Message& message) {
    if (const auto* welcome = std::get_if<protocol::Welcome>(&message.body))
      left_[welcome->membership.job] = welcome->membership.left;
    if (const auto* change = std::get_if<protocol::MembershipChange>(&message.body))
      left_[change->membership.job] = change->membership.left;
    const auto* replicated = std::get_if<protocol::Ack>(&message.body);
    if (replicated == nullptr) return;
    MILLRACE_CHECK(protocol::applies_after_acks(spec));
    if (left_[message.header.job] != 0) return;
    for (const protocol::Ack::Entry& entry : replicated->entries) {
      for (uint32_t worker = 0; worker < spec.workers; ++worker) {
        const uint64_t said =
            std::max(said_[{message.header.job, worker, entry.part}], said_[{message.header.job, worker, kAllParts}]);
        MILLRACE_CHECK(entry.n <= said, worker, entry.part, entry.n, said);
      }
    }
  }

 private:
  static constexpr uint32_t kAllParts = UINT32_MAX;

  void note(const protocol::Header& header, uint32_t part, uint64_t n) {
    uint64_t& most = said_[{header.job, header.worker, part}];
    most = std::max(most, n);
  }

  std::map<std::tuple<uint64_t, uint32_t, uint32_t>, uint64_t> said_;  ///< by job, worker and part: the most
  std::map<uint64_t, uint32_t> left_;                                  ///< by job
};

}  // namespace millrace::testing
