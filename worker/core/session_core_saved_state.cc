#include <utility>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "worker/core/session_core_impl.h"

/// The state that a process saves for the next one of this worker, and the initial state of that one.
namespace millrace::worker {
namespace {

Stream must_sum_core_saves(const std::vector<Stream>& streams) {
  std::vector<StreamView> views;
  for (const Stream& stream : streams) views.push_back(stream.view());
  auto sum = sum_many(views);
  MILLRACE_CHECK(sum.has_value(), streams.size());
  return std::move(*sum);
}

}  // namespace

void SessionCore::Impl::load(SavedState& saved) {
  const Status fitting = fits(saved, config.worker, config.spec);
  MILLRACE_CHECK(fitting.has_value(), fitting.error().message);
  for (uint32_t bucket = 0; bucket < buckets.size(); ++bucket) {
    const protocol::BucketLayout& planned = layout.buckets[bucket];
    std::vector<Stream> velocities;
    for (const protocol::BucketMember& member : planned.members) {
      std::optional<Stream> velocity = std::exchange(saved.tensors[member.tensor].momentum, std::nullopt);
      if (velocity) velocities.push_back(rebased(velocity->view(), member.offset, planned.dimension));
    }
    Velocity* const velocity = buckets[bucket].bucket->velocity();
    if (velocity != nullptr && !velocities.empty()) velocity->load(must_sum_core_saves(velocities));
    if (planned.members.size() == 1) {
      buckets[bucket].bucket->quarantine_loaded(std::move(saved.tensors[planned.members[0].tensor].residual));
      continue;
    }
    std::vector<Stream> streams;
    for (const protocol::BucketMember& member : planned.members) {
      const Stream residual = std::exchange(saved.tensors[member.tensor].residual, {});
      streams.push_back(rebased(residual.view(), member.offset, planned.dimension));
    }
    buckets[bucket].bucket->quarantine_loaded(must_sum_core_saves(streams));
  }
}

// Positions in the logs of another job mean nothing here, and with other parts neither.
void SessionCore::Impl::take_saved_positions() {
  if (!config.saved) return;
  const SavedState& saved = *config.saved;
  const bool same = saved.job == membership.job && saved.spec_hash == spec_hash && saved.layout_hash == layout_hash &&
                    saved.parts.size() == parts.size();
  if (!same) return;
  synced_in = saved.epoch;
  loaded_of_this_job = true;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].n = saved.parts[i].n;
    parts[i].decided_in = saved.parts[i].decided_in;
    parts[i].log_digest = saved.parts[i].log_digest;
    parts[i].branch = saved.parts[i].branch;
    parts[i].summary = saved.parts[i].summary;
    parts[i].account.loaded = true;
  }
}

SavedState SessionCore::Impl::saved_state() const {
  SavedState state;
  state.job_name = config.spec.name;
  state.spec_hash = spec_hash;
  state.layout_hash = layout_hash;
  state.worker = config.worker;
  if (membership.job == 0 && config.saved) {
    // This process has not seen the job: its position is that of the loaded state.
    state.job = config.saved->job;
    state.spec_hash = config.saved->spec_hash;
    state.layout_hash = config.saved->layout_hash;
    state.incarnation = config.saved->incarnation;
    state.epoch = config.saved->epoch;
    state.branch = config.saved->branch;
    state.parts = config.saved->parts;
  } else {
    state.job = membership.job;
    state.incarnation = incarnation;
    state.epoch = membership.epoch;
    state.branch = membership.branches;
    for (const PartRun& part : parts)
      state.parts.push_back(
          {part.layout.part, part.n, part.decided_in, part.log_digest, part.branch, part.summary_of_n()});
  }
  state.tensors.resize(tensors.size());
  for (uint32_t number = 0; number < buckets.size(); ++number) {
    const Bucket& bucket = *buckets[number].bucket;
    std::vector<Stream> streams = bucket.loaded_quarantined();
    BucketState own = bucket.state(clip.factor(buckets[number].selected));
    streams.push_back(std::move(own.residual));
    for (uint32_t part = buckets[number].first_part; part < buckets[number].first_part + buckets[number].part_count;
         ++part) {
      for (const Outstanding& out : parts[part].outstanding)
        streams.push_back(rebased(out.sent.view, parts[part].layout.begin, bucket.dimension()));
    }
    const Stream whole = must_sum_core_saves(streams);
    for (const protocol::BucketMember& member : layout.buckets[number].members) {
      SavedTensor& saved = state.tensors[member.tensor];
      const protocol::TensorSpec& spec = config.spec.tensors[member.tensor];
      saved.name = spec.name;
      saved.steps_pushed =
          tensors[member.tensor].pushed + (config.saved ? config.saved->tensors[member.tensor].steps_pushed : 0);
      saved.residual = slice_of(whole.view(), member.offset, member.offset + spec.dimension);
      if (own.velocity) saved.momentum = slice_of(own.velocity->view(), member.offset, member.offset + spec.dimension);
    }
  }
  return state;
}

}  // namespace millrace::worker
