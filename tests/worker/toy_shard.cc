#include "tests/worker/toy_shard.h"

#include <algorithm>

#include "kernels/base/hash.h"
#include "protocol/container.h"

namespace millrace::testing {

ToyTable::ToyTable(const protocol::JobSpec& spec_, uint32_t shard_count)
    : spec(spec_), layout(protocol::plan_layout(spec_, shard_count)) {
  view.job = 7;
  view.epoch = 1;
  for (uint32_t shard = 0; shard < shard_count; ++shard) view.shards.push_back({"toy:" + std::to_string(shard), 1});
}

uint64_t ToyTable::join(uint32_t worker, uint64_t nonce) {
  const auto found = std::ranges::find(view.members, worker, &protocol::Member::worker);
  if (found != view.members.end()) return found->nonce == nonce ? found->life : 0;
  if (view.started) return 0;
  view.members.push_back({worker, 1, nonce, protocol::MemberState::kSynced});
  std::ranges::sort(view.members, {}, &protocol::Member::worker);
  view.started = view.members.size() == spec.workers;
  ++view.epoch;
  return 1;
}

void ToyTable::remove(uint32_t worker) {
  std::erase_if(view.members, [&](const protocol::Member& member) { return member.worker == worker; });
  ++view.epoch;
}

uint64_t ToyShard::acknowledged(uint32_t part, uint32_t worker) const {
  const auto found = parts_[part].acks.find(worker);
  return found == parts_[part].acks.end() ? 0 : found->second;
}

protocol::Message ToyShard::to(uint32_t worker, protocol::Body body, SharedBytes payload) const {
  protocol::Message message;
  message.header = {view_.job, view_.epoch, worker, 1, number_, life};
  message.body = std::move(body);
  message.payload = std::move(payload);
  return message;
}

void ToyShard::serve(uint32_t worker, const ToyDecision& decision, Out& out) const {
  if (connected_.contains(worker)) out.emplace_back(worker, to(worker, decision.update, decision.payload));
}

void ToyShard::on_message(uint32_t worker, const protocol::Message& message, Out& out) {
  if (const auto* hello = std::get_if<protocol::Hello>(&message.body)) return on_hello(worker, *hello, out);
  if (!connected_.contains(worker)) return;
  if (std::holds_alternative<protocol::Contribution>(message.body)) return on_contribution(worker, message, out);
  if (const auto* ack = std::get_if<protocol::Ack>(&message.body)) {
    for (const auto& entry : ack->entries) {
      uint64_t& acked = parts_[entry.part].acks[worker];
      acked = std::max(acked, entry.n);
    }
  }
  if (const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message.body)) {
    out.emplace_back(worker, to(worker, *heartbeat));
  }
}

void ToyShard::on_hello(uint32_t worker, const protocol::Hello& hello, Out& out) {
  if (table_.join(worker, hello.nonce) == 0) {
    out.emplace_back(worker, to(worker, protocol::Refuse{ErrorCode::kIdentityInUse, "another process is here", false}));
    return;
  }
  connected_.insert(worker);
  if (view_.epoch != table_.view.epoch) adopt_view(out);
  protocol::Welcome welcome;
  welcome.view = view_;
  out.emplace_back(worker, to(worker, welcome));
}

void ToyShard::adopt_view(Out& out) {
  view_ = table_.view;
  std::set<uint32_t> members;
  for (const protocol::Member& member : view_.members) members.insert(member.worker);
  for (Part& part : parts_) {
    for (auto& [step, slots] : part.open) {
      std::erase_if(slots, [&](const auto& slot) { return !members.contains(slot.first); });
    }
  }
  for (const uint32_t worker : connected_) out.emplace_back(worker, to(worker, protocol::ViewChange{view_}));
  for (uint32_t part = 0; part < parts_.size(); ++part) {
    if (table_.layout.parts[part].shard != number_) continue;
    for (const uint32_t worker : connected_) {
      for (const auto& [step, decision] : parts_[part].log) {
        if (step >= acknowledged(part, worker)) serve(worker, decision, out);
      }
    }
    decide(part, out);
  }
}

void ToyShard::on_contribution(uint32_t worker, const protocol::Message& message, Out& out) {
  const auto& contribution = std::get<protocol::Contribution>(message.body);
  const protocol::PartLayout& layout = table_.layout.parts[contribution.part];
  if (layout.shard != number_) complaints.push_back("a contribution to a part of another shard");
  if (message.header.shard_life != life || message.header.job != view_.job) complaints.push_back("a wrong header");
  if (container_identity(message.payload.bytes).value_or(0) != contribution.payload_hash)
    complaints.push_back("the hash is not the payload's");
  const auto identity = std::pair(uint64_t{contribution.part} << 32 | worker, contribution.step);
  if (hashes_.emplace(identity, contribution.payload_hash).first->second != contribution.payload_hash) {
    complaints.push_back("a resend with other bytes");
  }
  Part& part = parts_[contribution.part];
  const auto decided = part.log.find(contribution.step);
  if (decided != part.log.end()) return serve(worker, decided->second, out);
  auto& slots = part.open[contribution.step];
  if (slots.contains(worker)) {
    out.emplace_back(worker, to(worker, protocol::Duplicate{contribution.part, contribution.step}));
    return;
  }
  auto stream = read_container<float>(message.payload.bytes, {.dimension = layout.end - layout.begin});
  if (!stream) {
    complaints.push_back("a payload that does not decode: " + stream.error().message);
    return;
  }
  slots[worker] = {contribution, std::move(*stream), message.header.life};
  decide(contribution.part, out);
}

void ToyShard::decide(uint32_t part, Out& out) {
  for (;;) {
    const uint64_t step = parts_[part].log.size();
    const auto open = parts_[part].open.find(step);
    if (!view_.started || open == parts_[part].open.end()) return;
    for (const protocol::Member& member : view_.members) {
      if (!open->second.contains(member.worker)) return;
    }
    close(part, step, out);
  }
}

void ToyShard::close(uint32_t part, uint64_t step, Out& out) {
  const protocol::PartLayout& layout = table_.layout.parts[part];
  const auto& slots = parts_[part].open[step];
  std::set<uint32_t> in;
  for (const auto& [worker, slot] : slots) in.insert(worker);
  ToyDecision& decision = parts_[part].log[step];
  decision.counted = count ? count(part, step, in) : in;
  Stream<float> sum = Stream<float>::empty(layout.end - layout.begin);
  std::map<uint64_t, double> total;
  for (const auto& [worker, slot] : slots) {
    if (!decision.counted.contains(worker)) continue;
    decision.update.contributors.push_back({worker, slot.life});
    decision.update.weight_sum += slot.contribution.weight;
    for (size_t i = 0; i < slot.stream.values.size(); ++i) {
      total[slot.stream.dense ? i : slot.stream.indices[i]] += static_cast<double>(slot.stream.values[i]);
    }
  }
  for (const auto& [index, value] : total) {
    if (carry && !carry(part, step, index)) continue;
    sum.indices.push_back(static_cast<uint32_t>(index));
    sum.values.push_back(static_cast<float>(value));
    decision.carried[layout.begin + index] = value;
  }
  decision.update.part = part;
  decision.update.step = step;
  decision.update.decided_in = view_.epoch;
  decision.update.whole_sum = !carry;
  auto container = encode_container<float>(std::as_const(sum).view(), StreamView<float>{}, EncodeOptions{});
  decision.payload = SharedBytes::from(std::move(container->bytes));
  for (const uint32_t worker : connected_) serve(worker, decision, out);
}

}  // namespace millrace::testing
