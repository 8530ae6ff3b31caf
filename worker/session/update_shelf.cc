#include "worker/session/update_shelf.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
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
        const bool overlaps = layout.parts[part].begin < member.end && member.begin < layout.parts[part].end;
        shelves_[member.tensor].portions_per_step += overlaps ? 1 : 0;
      }
    }
    members_.push_back(std::move(members));
  }
}

std::vector<UpdateShelf::Portion> UpdateShelf::portions(DeliveredUpdate&& delivered) const {
  const uint64_t part_begin = delivered.begin;
  const uint64_t part_end = part_begin + delivered.sum.view.dimension;
  const HeldStream<float> whole = std::move(delivered.sum);
  std::vector<Portion> out;
  for (const Member& member : members_[delivered.bucket]) {
    const uint64_t begin = std::max(part_begin, member.begin);
    const uint64_t end = std::min(part_end, member.end);
    if (begin >= end) continue;
    // A fused tensor starts or ends inside the part: its share is cut out, with indices of its own.
    const bool own_cut = begin != part_begin || end != part_end;
    const HeldStream<float> own =
        own_cut ? HeldStream<float>::from(cut(whole.view, begin - part_begin, end - part_begin)) : whole;
    Portion portion;
    portion.tensor = member.tensor;
    portion.step = delivered.push;
    portion.answers = delivered.answers_push;
    portion.piece = {begin - member.begin, own.view.dimension,    own.view.dense,        own.view.indices,
                     own.view.values,      delivered.denominator, delivered.contributors};
    portion.owner = own.owner;
    out.push_back(std::move(portion));
  }
  return out;
}

void UpdateShelf::attach(size_t tensor, const Target& target) {
  shelves_[tensor].target = target;
  shelves_[tensor].target.from_step = shelves_[tensor].steps_complete;
}

bool UpdateShelf::wanted_on_arrival(size_t tensor) const {
  const Target& target = shelves_[tensor].target;
  return !target.weights.empty() && target.when == ApplyWhen::kOnArrival;
}

void UpdateShelf::apply(const Target& target, const UpdatePiece& piece) {
  const float factor = static_cast<float>(static_cast<double>(target.scale) / piece.denominator);
  const StreamView<float> stream{piece.dimension, piece.dense, piece.indices, piece.values};
  add_scaled<float>(target.weights.subspan(piece.begin, piece.dimension), stream, factor);
}

const UpdateShelf::Step* UpdateShelf::find(size_t tensor, uint64_t step) const {
  const auto found = std::ranges::find(shelves_[tensor].steps, step, &Step::step);
  return found == shelves_[tensor].steps.end() ? nullptr : &*found;
}

UpdateShelf::Step* UpdateShelf::find(size_t tensor, uint64_t step) {
  return const_cast<Step*>(std::as_const(*this).find(tensor, step));
}

void UpdateShelf::put(Portion&& portion, Keep keep) {
  Shelf& shelf = shelves_[portion.tensor];
  Step* step = find(portion.tensor, portion.step);
  if (step == nullptr) {
    shelf.steps.push_back({});
    step = &shelf.steps.back();
    step->step = portion.step;
    step->update.tensor = portion.tensor;
    step->update.step = portion.step;
    step->update.applied = keep == Keep::kCountOnly;
  }
  step->portions += portion.answers ? 1 : 0;
  MILLRACE_CHECK(step->portions <= shelf.portions_per_step, step->portions, shelf.portions_per_step);
  // Parts deliver their steps in order, so steps become complete in order.
  const bool complete_now = portion.answers && step->portions == shelf.portions_per_step;
  if (complete_now) shelf.steps_complete = portion.step + 1;
  if (keep == Keep::kCountOnly) {
    // Applied already: nothing is left to be kept, however many steps nobody awaits.
    if (complete_now) std::erase_if(shelf.steps, [&](const Step& kept_step) { return kept_step.step == portion.step; });
    return;
  }
  step->update.pieces.push_back(portion.piece);
  step->owners.push_back(std::move(portion.owner));
}

bool UpdateShelf::applied_on_arrival(size_t tensor, uint64_t step) const {
  const Shelf& shelf = shelves_[tensor];
  return wanted_on_arrival(tensor) && step >= shelf.target.from_step && step < shelf.steps_complete;
}

bool UpdateShelf::complete(size_t tensor, uint64_t step) const {
  if (applied_on_arrival(tensor, step)) return true;
  const Step* found = find(tensor, step);
  return found != nullptr && found->portions == shelves_[tensor].portions_per_step;
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
  TensorUpdate update = std::move(found->update);
  std::ranges::stable_sort(update.pieces, {}, &UpdatePiece::begin);  // of one range: the earlier step first
  update.owner = std::make_shared<const std::vector<std::shared_ptr<const void>>>(std::move(found->owners));
  std::erase_if(shelves_[tensor].steps, [&](const Step& kept_step) { return kept_step.step == step; });
  return update;
}

std::vector<TensorUpdate> UpdateShelf::take_unapplied(size_t tensor, uint64_t step) {
  std::vector<TensorUpdate> out;
  for (Step& kept_step : shelves_[tensor].steps) {
    const bool wanted = kept_step.step >= shelves_[tensor].target.from_step && kept_step.step <= step;
    if (!wanted || kept_step.update.applied) continue;
    kept_step.update.applied = true;
    out.push_back(kept_step.update);
    out.back().owner = std::make_shared<const std::vector<std::shared_ptr<const void>>>(kept_step.owners);
  }
  return out;
}

}  // namespace millrace::worker
