#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/base/limits.h"
#include "protocol/messages/handover_frame.h"
#include "worker/core/session_core_impl.h"

/// Joins to a running job of path switch (S8). A worker that is asked for its weights, or for its position, finishes
/// its step and begins no other before the next epoch. So no worker advances past the step, and the joiner is at the
/// same step as all members when that epoch has it. See DESIGN.md, the section on joiners of path switch.
namespace millrace::worker {

namespace {

/// Returns the entries in order of their indices, as streams. An index that occurs twice (of two turns) is in the
/// second stream again.
std::vector<Stream> in_order(std::vector<std::pair<uint32_t, double>> entries, uint64_t begin, uint64_t dimension) {
  std::ranges::stable_sort(entries, {}, &std::pair<uint32_t, double>::first);
  std::vector<Stream> streams;
  while (!entries.empty()) {
    Stream& stream = streams.emplace_back(Stream::empty(dimension));
    std::vector<std::pair<uint32_t, double>> again;
    for (const auto& [index, value] : entries) {
      const auto at = static_cast<uint32_t>(index - begin);
      if (!stream.indices.empty() && stream.indices.back() == at) {
        again.emplace_back(index, value);
        continue;
      }
      stream.indices.push_back(at);
      stream.values.push_back(static_cast<float>(value));
    }
    entries = std::move(again);
  }
  return streams;
}

}  // namespace

void SessionCore::Impl::give_later(const GiveWeights& asked, Actions& actions) {
  const bool known = std::ranges::any_of(asked_at_rest, [&](const GiveWeights& one) {
    return one.part == asked.part && one.for_worker == asked.for_worker && one.for_incarnation == asked.for_incarnation;
  });
  if (!known) asked_at_rest.push_back(asked);
  switch_path->pause();
  give_at_rest(actions);
}

void SessionCore::Impl::give_at_rest(Actions& actions) {
  if (asked_at_rest.empty() || !synced() || over() || !switch_path->at_rest()) return;
  for (const GiveWeights& asked : std::exchange(asked_at_rest, {})) {
    if (asked.part == handover_part()) {
      send_handover(asked, actions);
    } else {
      actions.give_weights.push_back(asked);
    }
  }
}

void SessionCore::Impl::send_handover(const GiveWeights& asked, Actions& actions) {
  const SharedBytes whole = SharedBytes::from(switch_path->handover());
  for (size_t at = 0; at < whole.bytes.size(); at += protocol::kGivenRunBytes) {
    const size_t bytes = std::min<size_t>(protocol::kGivenRunBytes, whole.bytes.size() - at);
    protocol::Snapshot run;
    run.part = asked.part;
    run.for_worker = asked.for_worker;
    run.for_incarnation = asked.for_incarnation;
    run.offset = at / sizeof(float);
    const SharedBytes piece{whole.owner, whole.bytes.subspan(at, bytes)};
    run.payload_hash = hash64(piece.bytes);
    send(asked.shard, std::move(run), piece, actions);
  }
}

void SessionCore::Impl::forget_handovers() {
  incoming_handover.clear();
  handed_step.reset();
}

void SessionCore::Impl::on_handover_run(const protocol::Snapshot& run, ByteSpan bytes, TimeNs now, Actions& actions) {
  if (handed_step) return;
  if (run.offset == 0) incoming_handover.clear();
  const bool fits = run.offset * sizeof(float) == incoming_handover.size() && !bytes.empty() &&
                    hash64(bytes) == run.payload_hash &&
                    incoming_handover.size() + bytes.size() <= protocol::kHandoverBytesMax;
  if (!fits) {
    ++counters.dropped_malformed;
    links.front().missed_answer = true;
    incoming_handover.clear();
    return;
  }
  const size_t had = incoming_handover.size();
  incoming_handover.resize(had + bytes.size());
  std::memcpy(incoming_handover.data() + had, bytes.data(), bytes.size());
  progress_at = now;
  links.front().arriving.restart();
  if (incoming_handover.size() < protocol::kHandoverHeadBytes) return;
  uint64_t all = 0;
  std::memcpy(&all, incoming_handover.data() + sizeof(uint64_t), sizeof all);
  if (incoming_handover.size() < all) return;
  const Result<uint64_t> next = switch_path->take_over(incoming_handover, interrupted_incarnation);
  incoming_handover.clear();
  if (!next) {
    ++counters.dropped_malformed;
    log(actions, Severity::kWarning, next.error().message);
    return;
  }
  if (std::optional<SwitchStepDone> left = switch_path->take_done()) left_step = std::move(left);
  handed_step = *next;
  if (const size_t revoked = switch_path->revoked(); revoked > 0) {
    log(actions, Severity::kInfo,
        std::to_string(revoked) + " entries of this worker's last turns are returned: no remaining worker had them");
  }
  for (PartRun& part : parts) {
    if (!part.waiting_settle) continue;
    const protocol::Settle settle = *std::exchange(part.waiting_settle, std::nullopt);
    on_settle(part.layout.shard, settle, now, actions);
  }
}

/// Returns revoked entries to the residual: the workers that had the turn's result are gone, and the others computed
/// the turn without it. Runs only after another worker's weights have replaced the part's, since its own include them.
void SessionCore::Impl::return_revoked(PartRun& part) {
  const uint64_t begin = switch_path->layout().bucket_begin[part.layout.bucket] + part.layout.begin;
  std::vector<std::pair<uint32_t, double>> revoked = switch_path->take_revoked(begin, begin + part.dimension());
  Mass mass;
  for (const auto& [index, value] : revoked) mass.count(-value);
  part.account.carried_by_switch.add(mass);
  for (Stream& stream : in_order(std::move(revoked), begin, part.dimension()))
    buckets[part.layout.bucket].bucket->return_to_quarantine(part.at, std::move(stream));
}

/// Resolves the entries offered for the step in which this worker was evicted. The weights that it continues with
/// include the counted ones. Where the step had not begun here, nothing was sent.
void SessionCore::Impl::resolve_interrupted_step(PartRun& part) {
  Bucket& bucket = *buckets[part.layout.bucket].bucket;
  return_revoked(part);
  for (const Outstanding& out : std::exchange(part.outstanding, {})) {
    if (!left_step) {
      bucket.return_to_quarantine(part.at, out.sent.copy());
      continue;
    }
    bucket.return_to_quarantine(part.at, outcome_by_switch(part, out, *left_step).back);
  }
}

}  // namespace millrace::worker
