#include "tests/worker/toys/toy_shard.h"

#include <algorithm>

#include "kernels/base/hash.h"
#include "protocol/container/container.h"

namespace millrace::testing {

ToyTable::ToyTable(const protocol::JobSpec& spec_, uint32_t shard_count)
    : spec(spec_), layout(protocol::plan_layout(spec_, shard_count)) {
  membership.job = 7;
  membership.epoch = 1;
  for (uint32_t shard = 0; shard < shard_count; ++shard)
    membership.shards.push_back({"toy:" + std::to_string(shard), 1});
}

uint64_t ToyTable::join(uint32_t worker, const protocol::Hello& hello) {
  const auto found = std::ranges::find(membership.members, worker, &protocol::Member::worker);
  if (found != membership.members.end()) {
    if (found->nonce == hello.nonce) return found->incarnation;
    if (!hello.returns) return 0;
    membership.members.erase(found);
  }
  if (membership.started && !hello.has_weights) return 0;
  const auto state = membership.started ? protocol::MemberState::kJoining : protocol::MemberState::kSynced;
  membership.members.push_back({worker, ++lives_[worker], hello.nonce, state});
  std::ranges::sort(membership.members, {}, &protocol::Member::worker);
  membership.started = membership.started || membership.members.size() == spec.workers;
  ++membership.epoch;
  return lives_[worker];
}

void ToyTable::remove(uint32_t worker) {
  std::erase_if(membership.members, [&](const protocol::Member& member) { return member.worker == worker; });
  ++membership.epoch;
}

const protocol::Member* ToyTable::member(uint32_t worker) const {
  const auto found = std::ranges::find(membership.members, worker, &protocol::Member::worker);
  return found == membership.members.end() ? nullptr : &*found;
}

uint64_t ToyTable::synced_members() const {
  return static_cast<uint64_t>(
      std::ranges::count(membership.members, protocol::MemberState::kSynced, &protocol::Member::state));
}

bool ToyTable::make_synced(uint32_t worker, uint64_t incarnation, uint64_t epoch) {
  const auto found = std::ranges::find(membership.members, worker, &protocol::Member::worker);
  if (epoch != membership.epoch || found == membership.members.end() || found->incarnation != incarnation) return false;
  found->state = protocol::MemberState::kSynced;
  ++membership.epoch;
  return true;
}

bool ToyTable::activate(uint32_t shard, uint64_t parent, uint64_t epoch) {
  if (epoch != membership.epoch) return false;
  membership.activations.push_back({shard, ++membership.branches, parent});
  ++membership.epoch;
  return true;
}

bool ToyTable::cut(uint32_t worker, const protocol::State& state, uint64_t epoch) {
  if (epoch != membership.epoch) return false;
  std::vector<uint64_t> parents(membership.shards.size(), 0);
  for (const protocol::State::Part& part : state.parts) {
    uint64_t& parent = parents[layout.parts[part.part].shard];
    parent = std::max(parent, part.branch);
    truncate(part.part, part.n);
  }
  ++membership.branches;
  for (uint32_t shard = 0; shard < parents.size(); ++shard)
    membership.activations.push_back({shard, membership.branches, parents[shard]});
  membership.cut = ++membership.epoch;
  membership.cut_worker = worker;
  std::ranges::find(membership.members, worker, &protocol::Member::worker)->state = protocol::MemberState::kSynced;
  return true;
}

uint64_t ToyShard::acknowledged(uint32_t part, uint32_t worker) const {
  const auto found = parts_[part].acks.find(worker);
  return found == parts_[part].acks.end() ? 0 : found->second;
}

uint64_t ToyShard::life_of(uint32_t worker) const {
  const auto found = std::ranges::find(membership_.members, worker, &protocol::Member::worker);
  return found == membership_.members.end() ? 0 : found->incarnation;
}

uint64_t ToyShard::stable(uint32_t part) const {
  uint64_t least = UINT64_MAX;
  for (const protocol::Member& member : membership_.members) least = std::min(least, acknowledged(part, member.worker));
  return membership_.members.empty() ? 0 : least;
}

protocol::Message ToyShard::to(uint32_t worker, protocol::Body body, SharedBytes payload) const {
  protocol::Message message;
  message.header = {membership_.job, membership_.epoch, worker, life_of(worker), number_, incarnation};
  message.body = std::move(body);
  message.payload = std::move(payload);
  return message;
}

void ToyShard::serve(uint32_t worker, const ToyDecision& decision, Out& out) const {
  const uint32_t part = decision.update.part;
  if (!connected_.contains(worker) || decision.update.step < parts_[part].first_kept) return;
  protocol::Update update = decision.update;
  update.branch = branch_;
  update.stable = stable(part);
  update.summary = summary(part, update.step + 1);
  out.emplace_back(worker, to(worker, std::move(update), decision.payload));
}

void ToyShard::on_message(uint32_t worker, const protocol::Message& message, Out& out) {
  if (const auto* hello = std::get_if<protocol::Hello>(&message.body)) return on_hello(worker, *hello, out);
  if (!connected_.contains(worker)) return;
  if (message.header.epoch > membership_.epoch) adopt_membership(out);
  if (message.header.incarnation != life_of(worker) || message.header.shard_incarnation != incarnation) return;
  if (std::holds_alternative<protocol::Contribution>(message.body)) return on_contribution(worker, message, out);
  if (const auto* ack = std::get_if<protocol::Ack>(&message.body)) {
    for (const auto& entry : ack->entries) {
      if (entry.n > parts_[entry.part].log.size() && !recovering_)
        complaints.push_back("an ack of a step that is not decided");
      uint64_t& acked = parts_[entry.part].acks[worker];
      acked = std::max(acked, entry.n);
      parts_[entry.part].first_kept = std::max(parts_[entry.part].first_kept, stable(entry.part));
      for (const auto& [step, decision] : parts_[entry.part].log) {
        if (entry.again && !recovering_ && step >= entry.n) serve(worker, decision, out);
      }
    }
    return;
  }
  if (const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message.body)) {
    protocol::Heartbeat answer = *heartbeat;
    for (uint32_t part = 0; part < parts_.size() && !recovering_; ++part) {
      if (is_mine(part) && parts_[part].log.size() > acknowledged(part, worker))
        answer.decided.push_back({part, parts_[part].log.size()});
    }
    out.emplace_back(worker, to(worker, answer));
    return;
  }
  on_return_message(worker, message, out);
}

void ToyShard::on_hello(uint32_t worker, const protocol::Hello& hello, Out& out) {
  if (refuses) {
    out.emplace_back(worker, to(worker, *refuses));
    return;
  }
  if (table_.join(worker, hello) == 0) {
    out.emplace_back(worker, to(worker, protocol::Refuse{ErrorCode::kIdentityInUse, "another process is here", false}));
    return;
  }
  connected_.insert(worker);
  if (membership_.epoch != table_.membership.epoch) adopt_membership(out);
  protocol::Welcome welcome;
  welcome.membership = membership_;
  out.emplace_back(worker, to(worker, welcome));
}

void ToyShard::adopt_membership(Out& out) {
  const protocol::Membership before = std::exchange(membership_, table_.membership);
  for (const uint32_t worker : connected_)
    out.emplace_back(worker, to(worker, protocol::MembershipChange{membership_}));
  std::map<uint32_t, uint64_t> incarnations;
  for (const protocol::Member& member : membership_.members) incarnations[member.worker] = member.incarnation;
  for (Part& part : parts_) {
    for (auto& [step, slots] : part.open)
      std::erase_if(slots, [&](const auto& slot) {
        return !incarnations.contains(slot.first) || incarnations[slot.first] != slot.second.incarnation;
      });
    std::erase_if(part.acks, [&](const auto& ack) {
      return !incarnations.contains(ack.first) || incarnations[ack.first] != ack_lives_[ack.first];
    });
  }
  ack_lives_ = incarnations;
  states_.clear();
  joiners_.clear();
  // Everything that was decided past a cut is void, also here.
  if (membership_.cut > before.epoch) recovering_ = true;
  if (recovering_) return begin_recovery(out);
  for (uint32_t part = 0; part < parts_.size(); ++part) {
    if (!is_mine(part)) continue;
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
  if (message.header.shard_incarnation != incarnation || message.header.job != membership_.job)
    complaints.push_back("a wrong header");
  if (container_identity(message.payload.bytes).value_or(0) != contribution.payload_hash)
    complaints.push_back("the hash is not the payload's");
  const auto identity = std::tuple(contribution.part, worker, message.header.incarnation, contribution.step);
  if (hashes_.emplace(identity, contribution.payload_hash).first->second != contribution.payload_hash) {
    complaints.push_back("a resend with other bytes");
  }
  const protocol::Member* sender = table_.member(worker);
  if (recovering_ || sender == nullptr || sender->state != protocol::MemberState::kSynced) return;
  Part& part = parts_[contribution.part];
  const auto decided = part.log.find(contribution.step);
  if (decided != part.log.end()) return serve(worker, decided->second, out);
  auto& slots = part.open[contribution.step];
  if (slots.contains(worker)) {
    out.emplace_back(worker, to(worker, protocol::Duplicate{contribution.part, contribution.step}));
    return;
  }
  auto stream = read_container(message.payload.bytes, {.dimension = layout.end - layout.begin});
  if (!stream) {
    complaints.push_back("a payload that does not decode: " + stream.error().message);
    return;
  }
  slots[worker] = {contribution, std::move(*stream), message.header.incarnation};
  decide(contribution.part, out);
}

void ToyShard::decide(uint32_t part, Out& out) {
  for (;;) {
    const uint64_t step = parts_[part].log.size();
    const auto open = parts_[part].open.find(step);
    if (!membership_.started || recovering_ || open == parts_[part].open.end() || open->second.empty()) return;
    for (const protocol::Member& member : membership_.members) {
      if (member.state == protocol::MemberState::kSynced && !open->second.contains(member.worker)) return;
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
  Stream sum = Stream::empty(layout.end - layout.begin);
  std::map<uint64_t, double> total;
  for (const auto& [worker, slot] : slots) {
    if (!decision.counted.contains(worker)) continue;
    decision.update.contributors.push_back({worker, slot.incarnation});
    decision.streams[worker] = slot.stream;
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
  decision.update.decided_in = membership_.epoch;
  decision.update.whole_sum = !carry;
  auto container = encode_container(std::as_const(sum).view(), StreamView{}, EncodeOptions{});
  decision.payload = SharedBytes::from(std::move(container->bytes));
  for (const uint32_t worker : connected_) serve(worker, decision, out);
}

}  // namespace millrace::testing
