#include "worker/session/update_assembler.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/stream/stream.h"

namespace millrace::worker {

UpdateShelf::UpdateShelf(const protocol::JobSpec& spec, const protocol::JobLayout& layout) {
  shelves_.resize(spec.tensors.size());
  for (const protocol::BucketLayout& bucket : layout.buckets) {
    std::vector<Member> members;
    for (const protocol::BucketMember& member : bucket.members) {
      members.push_back({member.tensor, member.offset, member.offset + spec.tensors[member.tensor].dimension});
    }
    for (uint32_t part = bucket.first_part; part < bucket.first_part + bucket.part_count; ++part) {
      for (const Member& member : members) {
        const uint64_t begin = std::max(layout.parts[part].begin, member.begin);
        const uint64_t end = std::min(layout.parts[part].end, member.end);
        if (begin < end) shelves_[member.tensor].runs.push_back({part, begin - member.begin, end - begin});
      }
    }
    members_.push_back(std::move(members));
  }
}

std::vector<UpdateShelf::Portion> UpdateShelf::portions(DeliveredUpdate&& delivered) const {
  const uint64_t part_begin = delivered.begin;
  const uint64_t part_end = part_begin + delivered.sum.view.dimension;
  const SharedStream whole = std::move(delivered.sum);
  std::vector<Portion> out;
  for (const Member& member : members_[delivered.bucket]) {
    const uint64_t begin = std::max(part_begin, member.begin);
    const uint64_t end = std::min(part_end, member.end);
    if (begin >= end) continue;
    // A fused tensor starts or ends inside the part: its share is cut out, with indices of its own.
    const bool is_slice = begin != part_begin || end != part_end;
    const SharedStream own =
        is_slice ? SharedStream::from(slice_of(whole.view, begin - part_begin, end - part_begin)) : whole;
    Portion portion;
    portion.tensor = member.tensor;
    portion.answers = delivered.answers_push;
    portion.arrives = !delivered.delivered_before;
    portion.arrival = {delivered.push,
                       delivered.step,
                       {begin - member.begin, own.view.dimension, own.view.dense, own.view.indices, own.view.values,
                        delivered.denominator, delivered.contributors},
                       own.owner,
                       delivered.replaces,
                       delivered.steps};
    out.push_back(std::move(portion));
  }
  return out;
}

void UpdateShelf::attach(size_t tensor, ApplyWhen when) {
  shelves_[tensor].when = when;
  shelves_[tensor].from_step = shelves_[tensor].steps_complete;
}

const UpdateShelf::Step* UpdateShelf::find(size_t tensor, uint64_t step) const {
  const auto found = std::ranges::find(shelves_[tensor].steps, step, &Step::step);
  return found == shelves_[tensor].steps.end() ? nullptr : &*found;
}

UpdateShelf::Step* UpdateShelf::find(size_t tensor, uint64_t step) {
  return const_cast<Step*>(std::as_const(*this).find(tensor, step));
}

void UpdateShelf::put(Portion&& portion) {
  Arrival& arrival = portion.arrival;
  MILLRACE_CHECK(!arrival.replaces, portion.tensor);
  Shelf& shelf = shelves_[portion.tensor];
  Step* step = find(portion.tensor, arrival.push);
  if (step == nullptr) {
    shelf.steps.push_back({});
    step = &shelf.steps.back();
    step->step = arrival.push;
    step->update.tensor = portion.tensor;
    step->update.step = arrival.push;
  }
  step->portions += portion.answers ? 1 : 0;
  MILLRACE_CHECK(step->portions <= shelf.runs.size(), step->portions, shelf.runs.size());
  // Parts deliver their steps in order, so steps become complete in order.
  const bool complete_now = portion.answers && step->portions == shelf.runs.size();
  if (complete_now) shelf.steps_complete = std::max(shelf.steps_complete, arrival.push + 1);
  if (on_arrival(portion.tensor)) {
    // Nothing is retained, for any number of steps that no caller awaits.
    if (complete_now)
      std::erase_if(shelf.steps, [&](const Step& queued_step) { return queued_step.step == arrival.push; });
    return;
  }
  step->update.pieces.push_back(arrival.piece);
  step->owners.push_back(std::move(arrival.owner));
}

bool UpdateShelf::applied_on_arrival(size_t tensor, uint64_t step) const {
  const Shelf& shelf = shelves_[tensor];
  return on_arrival(tensor) && step >= shelf.from_step && step < shelf.steps_complete;
}

bool UpdateShelf::complete(size_t tensor, uint64_t step) const {
  if (applied_on_arrival(tensor, step)) return true;
  const Step* found = find(tensor, step);
  return found != nullptr && found->portions == shelves_[tensor].runs.size();
}

bool UpdateShelf::handed_out(size_t tensor, uint64_t step) const {
  return step < shelves_[tensor].steps_complete && !applied_on_arrival(tensor, step) && find(tensor, step) == nullptr;
}

TensorUpdate UpdateShelf::take(size_t tensor, uint64_t step) {
  Step* found = find(tensor, step);
  if (found == nullptr && applied_on_arrival(tensor, step)) {
    return {.tensor = tensor, .step = step, .applied = true, .pieces = {}, .owner = nullptr};
  }
  MILLRACE_CHECK(found != nullptr, tensor, step);
  // What takes memory comes first: the step is whole for the next call where there is none.
  const auto owners = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  std::ranges::stable_sort(found->update.pieces, {}, &UpdatePiece::begin);  // of one range: the earlier step first
  *owners = std::move(found->owners);
  TensorUpdate update = std::move(found->update);
  update.applied = attached(tensor) && step >= shelves_[tensor].from_step;
  update.owner = owners;
  std::erase_if(shelves_[tensor].steps, [&](const Step& queued_step) { return queued_step.step == step; });
  return update;
}

}  // namespace millrace::worker
