#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/job_spec.h"
#include "protocol/layout.h"
#include "server/actions.h"
#include "server/job_rounds.h"
#include "server/limits.h"
#include "server/members.h"
#include "server/status.h"

namespace millrace::server {

/// One open job at this shard: its specification, its members as this shard sees them, and its rounds. The table is not
/// touched here: ShardCore changes it and hands in what came out.
class Job {
 public:
  struct Setup {
    protocol::JobSpec spec;
    protocol::JobLayout layout;
    const MemoryGate& gate;  ///< all that are referred to outlive the job
    const Limits& limits;
    MemoryAccount& shard_memory;
    RefusalLog& refusals;
    uint32_t shard = 0;
    uint64_t shard_life = 0;
  };

  explicit Job(Setup setup);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const protocol::JobSpec& spec() const { return setup_.spec; }
  uint64_t spec_hash() const { return spec_hash_; }
  uint64_t layout_hash() const { return layout_hash_; }
  const protocol::JobView& view() const { return members_.view(); }
  Members& members() { return members_; }
  const Members& members() const { return members_; }
  JobRounds& rounds() { return rounds_; }
  const JobRounds& rounds() const { return rounds_; }

  /// [7] A view that is newer than the present one (or the first): members hear of it first, then their rounds go on in
  /// it. While the job has not started, members are told at flush_view() only, so that the joins of many workers are
  /// few messages. Returns the connections of who is no longer a member; they are told at once.
  std::vector<protocol::PeerId> adopt(protocol::JobView view, TimeNs now, Actions& actions);
  void flush_view(Actions& actions);

  protocol::Welcome welcome(const std::string& software) const;
  protocol::Heartbeat heartbeat_answer(const protocol::Member& to, uint64_t sequence) const;

  /// Members to be removed for silence now. Empty also where only the last one is silent: see abandoned().
  std::vector<protocol::Member> silent(TimeNs now) const;
  /// Every member has been silent for limits.abandon_ms: nobody is left to end the job.
  bool abandoned(TimeNs now) const;

  JobStatus status(TimeNs now) const;

 private:
  void tell_view(Actions& actions) const;
  std::vector<uint32_t> not_joined() const;
  void add_members(JobStatus& status, TimeNs now) const;
  void add_wait(JobStatus& status, TimeNs now) const;

  Setup setup_;
  uint64_t spec_hash_;
  uint64_t layout_hash_;
  Members members_;
  JobRounds rounds_;
  bool view_untold_ = false;
  TimeNs opened_ = 0;
  TimeNs started_ = 0;  ///< when this shard learned it; 0: not yet
};

}  // namespace millrace::server
