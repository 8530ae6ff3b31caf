#include "worker/core/store_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/base/limits.h"

namespace millrace::worker {
namespace {

constexpr size_t kStoreClientRunValues = protocol::kSnapshotRunBytes / sizeof(float);

SharedBytes bytes_of_run(std::span<const float> values) {
  ByteBuffer bytes(values.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return SharedBytes::from(std::move(bytes));
}

size_t index_count(const StoreClient::Request& request) { return request.indices.bytes.size() / sizeof(uint32_t); }

uint64_t value_count(const StoreClient::Request& request) {
  return request.indices.bytes.empty() ? request.count : uint64_t{index_count(request)} * request.run;
}

/// Returns the index of every entry of the runs.
SharedBytes entries_of_runs(ByteSpan indices, uint32_t run) {
  const size_t count = indices.size() / sizeof(uint32_t);
  ByteBuffer bytes(indices.size() * run);
  for (size_t at = 0; at < count * run; ++at) {
    uint32_t index = 0;
    std::memcpy(&index, indices.data() + at / run * sizeof(index), sizeof(index));
    index += static_cast<uint32_t>(at % run);
    std::memcpy(bytes.data() + at * sizeof(index), &index, sizeof(index));
  }
  return SharedBytes::from(std::move(bytes));
}

}  // namespace

uint64_t StoreClient::ask(Request request) {
  MILLRACE_CHECK(request.run > 0 && value_count(request) <= protocol::kPullValuesMax, request.run,
                 value_count(request));
  const uint64_t id = next_id_++;
  pending_[id].request = std::move(request);
  return id;
}

uint64_t StoreClient::ask_all(std::span<Request> requests) {
  const uint64_t first = next_id_;
  try {
    for (Request& request : requests) ask(std::move(request));
  } catch (...) {
    for (uint64_t id = first; id < next_id_; ++id) cancel(id);
    throw;
  }
  return first;
}

void StoreClient::on_pulled(const protocol::Message& message, TimeNs now, std::vector<Done>& done) {
  const auto& pulled = std::get<protocol::Pulled>(message.body);
  if (pulled.id == 0) return forget_dropped_place(pulled.part, now);
  const auto at = pending_.find(pulled.id);
  if (at == pending_.end() || at->second.request.part != pulled.part)
    return;  // answered before, or not wanted any more
  Pending& pending = at->second;
  extend_deadlines(pending, now);
  if (pulled.code == ErrorCode::kUnavailable) {
    pending.again_at = now + config_.busy_after;
    pending.interval = 0;  // nothing was lost
    return;
  }
  const Request& request = pending.request;
  if (!pulled.code) {
    const bool damaged = pulled.values != 0 && hash64(message.payload.bytes) != pulled.payload_hash;
    const bool fits = pulled.values == value_count(request) && pulled.n >= pending.at_least;
    if (damaged || !fits) return;  // asked for again in time
  }
  Done& one = done.emplace_back(Done{pulled.id, pulled.n, message.payload, std::nullopt, request.call, request.out});
  if (pulled.code) one.error = Error{*pulled.code, pulled.sentence};
  pending_.erase(at);
}

/// A request that an answer has overtaken keeps its deadline: it may be lost, however many answers follow.
void StoreClient::extend_deadlines(const Pending& answered, TimeNs now) {
  for (auto& [id, pending] : pending_) {
    const bool same_shard = pending.request.shard == answered.request.shard;
    if (!pending.sent || !same_shard || pending.sent_at < answered.sent_at) continue;
    pending.again_at = std::max(pending.again_at, now + pending.interval);
  }
}

void StoreClient::on_received(uint32_t shard, uint64_t bytes, TimeNs now) {
  for (auto& [id, pending] : pending_) {
    if (!pending.sent || pending.request.shard != shard || !pending.arriving.delay(bytes)) continue;
    pending.again_at = std::max(pending.again_at, now + pending.interval);
  }
}

void StoreClient::send_weights(Pending& pending, const ShardLink& link, TimeNs now, Actions& actions) {
  const Request& request = pending.request;
  uint64_t offset = 0;
  for (const std::span<const float> weights : request.place) {
    for (size_t at = 0; at < weights.size(); at += kStoreClientRunValues) {
      const auto run = weights.subspan(at, std::min(kStoreClientRunValues, weights.size() - at));
      SharedBytes bytes = bytes_of_run(run);
      const protocol::Place place{request.part, offset, hash64(bytes.bytes)};
      offset += run.size();
      actions.sends.push_back({request.shard, {link.header, place, std::move(bytes)}});
    }
  }
  pending.placed = true;
  Peer& peer = peers_[request.shard];
  if (peer.place_interval == 0) peer.place_interval = config_.place_again_after;
  peer.place_again_at = now + peer.place_interval;
}

void StoreClient::send(uint64_t id, Pending& pending, const ShardLink& link, TimeNs now, Actions& actions) const {
  const Request& request = pending.request;
  protocol::Pull body;
  body.id = id;
  body.part = request.part;
  body.at_least = at_least_of(request);
  body.offset = request.offset;
  body.count = request.count;
  SharedBytes indices = request.indices;
  if (request.run > 1 && link.version < protocol::kPullRunsSince) {
    indices = entries_of_runs(indices.bytes, request.run);
  } else if (request.run > 1) {
    body.run = request.run;
  }
  body.indices = static_cast<uint32_t>(indices.bytes.size() / sizeof(uint32_t));
  actions.sends.push_back({request.shard, {link.header, body, std::move(indices)}});
  pending.sent = true;
  pending.at_least = body.at_least;
  pending.sent_at = now;
  pending.arriving.restart();
  pending.interval =
      pending.interval == 0 ? config_.resend_after : std::min(pending.interval * 2, config_.resend_after_max);
  pending.again_at = now + pending.interval;
}

/// The queue to a shard is dropped with its connection.
void StoreClient::forget_lost_sends(const Reach& reach) {
  peers_.resize(reach.shards.size());
  std::vector<bool> lost(peers_.size());
  for (size_t shard = 0; shard < peers_.size(); ++shard) {
    const std::optional<ShardLink>& link = reach.shards[shard];
    Peer& peer = peers_[shard];
    lost[shard] = !link || !peer.reached || peer.incarnation != link->header.incarnation ||
                  peer.shard_incarnation != link->header.shard_incarnation;
    if (!lost[shard]) continue;
    peer = link ? Peer{link->header.incarnation, link->header.shard_incarnation, true} : Peer{};
  }
  for (auto& [id, pending] : pending_) {
    if (!lost[pending.request.shard]) continue;
    pending.sent = pending.placed = false;
    pending.interval = 0;
    pending.place_at = pending.place_wait = 0;
  }
}

/// A shard that was sent all first weights long ago, and has not answered, may have dropped a run of them.
void StoreClient::forget_old_places(const Reach& reach, TimeNs now) {
  std::vector<bool> due(peers_.size());
  for (size_t shard = 0; shard < peers_.size(); ++shard) {
    Peer& peer = peers_[shard];
    if (peer.place_again_at == kNever) continue;
    const bool sending = !reach.sending.empty() && reach.sending[shard];
    if (sending) peer.place_again_at = std::max(peer.place_again_at, now + peer.place_interval);
    due[shard] = now >= peer.place_again_at;
    if (!due[shard]) continue;
    peer.place_again_at = kNever;
    peer.place_interval *= 2;
  }
  for (auto& [id, pending] : pending_) {
    if (due[pending.request.shard]) pending.placed = false;
  }
}

/// The shard has dropped a run of the part's first weights. It may have no room, so that the waits grow.
void StoreClient::forget_dropped_place(uint32_t part, TimeNs now) {
  for (auto& [id, pending] : pending_) {
    if (pending.request.part != part || !pending.placed) continue;
    pending.placed = false;
    pending.place_wait =
        pending.place_wait == 0 ? config_.busy_after : std::min(pending.place_wait * 2, config_.place_again_after);
    pending.place_at = now + pending.place_wait;
  }
}

/// Returns when a request that was sent is due again. It may still wait behind other bytes that leave for the shard.
TimeNs StoreClient::again_at(Pending& pending, const Reach& reach, TimeNs now) {
  const bool leaves = !reach.sending.empty() && reach.sending[pending.request.shard];
  const bool may_wait = leaves && now - pending.sent_at < kLeavingMax;
  // A shard without room has the request: it is asked again soon.
  if (may_wait && pending.interval != 0) pending.again_at = std::max(pending.again_at, now + pending.interval);
  return pending.again_at;
}

void StoreClient::advance(const Reach& reach, TimeNs now, Actions& actions) {
  forget_lost_sends(reach);
  forget_old_places(reach, now);
  std::vector<size_t> in_flight(peers_.size());
  for (const auto& [id, pending] : pending_) {
    if (pending.sent) ++in_flight[pending.request.shard];
  }
  // One part in a turn, and only into a short queue: it never holds a copy of a large model.
  std::vector<bool> full = reach.queued;
  full.resize(peers_.size());
  places_left_ = false;
  for (auto& [id, pending] : pending_) {
    Request& request = pending.request;
    const std::optional<ShardLink>& link = reach.shards[request.shard];
    if (!link) continue;
    if (reach.steps_applied) request.own_steps = std::min(request.own_steps, reach.steps_applied(request.part));
    // Weights that another worker was to place, and that has left, are this one's to place.
    if (now >= pending.place_at) pending.place_at = 0;
    const bool places = reach.places && !request.place.empty() && !pending.placed && pending.place_at == 0;
    if (places && full[request.shard]) {
      places_left_ = true;
      continue;  // the pull follows the weights
    }
    if (places) {
      send_weights(pending, *link, now, actions);
      full[request.shard] = true;
    }
    if (!pending.sent) {
      // Weights are placed beyond the limit: a shard that saves them answers no pull before it has those of all parts.
      if (in_flight[request.shard] >= kInFlightMax) continue;
      ++in_flight[request.shard];
    } else if (!places && now < again_at(pending, reach, now) && at_least_of(request) >= pending.at_least) {
      continue;
    }
    send(id, pending, *link, now, actions);
  }
}

TimeNs StoreClient::next_deadline() const {
  if (places_left_ && !pending_.empty()) return 0;
  TimeNs next = kNever;
  for (const auto& [id, pending] : pending_) {
    if (pending.sent) next = std::min(next, pending.again_at);
    if (pending.place_at != 0) next = std::min(next, pending.place_at);
  }
  return next;
}

}  // namespace millrace::worker
