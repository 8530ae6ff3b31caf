#include "worker/core/store_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/base/limits.h"

namespace millrace::worker {
namespace {

constexpr TimeNs kNeverAsked = INT64_MAX;
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
  const auto at = pending_.find(pulled.id);
  if (at == pending_.end() || at->second.request.part != pulled.part)
    return;  // answered before, or not wanted any more
  Pending& pending = at->second;
  if (pulled.code == ErrorCode::kUnavailable) {
    pending.again_at = now + config_.busy_after;
    pending.interval = 0;  // nothing was lost
    return;
  }
  const Request& request = pending.request;
  if (!pulled.code) {
    const bool damaged = pulled.values != 0 && hash64(message.payload.bytes) != pulled.payload_hash;
    const bool fits = pulled.values == value_count(request) && pulled.n >= request.at_least;
    if (damaged || !fits) return;  // asked for again in time
  }
  Done& one = done.emplace_back(Done{pulled.id, pulled.n, message.payload, std::nullopt, request.call, request.out});
  if (pulled.code) one.error = Error{*pulled.code, pulled.sentence};
  pending_.erase(at);
}

void StoreClient::send(uint64_t id, Pending& pending, const Reach& reach, TimeNs now, Actions& actions) const {
  const Request& request = pending.request;
  const protocol::Header& header = reach.shards[request.shard]->header;
  const bool places = reach.places && !request.place.empty();
  uint64_t offset = 0;
  for (const std::span<const float> weights : places ? request.place : std::vector<std::span<const float>>()) {
    for (size_t at = 0; at < weights.size(); at += kStoreClientRunValues) {
      const auto run = weights.subspan(at, std::min(kStoreClientRunValues, weights.size() - at));
      SharedBytes bytes = bytes_of_run(run);
      const protocol::Place place{request.part, offset, hash64(bytes.bytes)};
      offset += run.size();
      actions.sends.push_back({request.shard, {header, place, std::move(bytes)}});
    }
  }
  protocol::Pull body;
  body.id = id;
  body.part = request.part;
  body.at_least = request.at_least;
  body.offset = request.offset;
  body.count = request.count;
  SharedBytes indices = request.indices;
  if (request.run > 1 && reach.shards[request.shard]->version < protocol::kPullRunsSince) {
    indices = entries_of_runs(indices.bytes, request.run);
  } else if (request.run > 1) {
    body.run = request.run;
  }
  body.indices = static_cast<uint32_t>(indices.bytes.size() / sizeof(uint32_t));
  actions.sends.push_back({request.shard, {header, body, std::move(indices)}});
  pending.sent = true;
  pending.placed = places;
  pending.interval =
      pending.interval == 0 ? config_.resend_after : std::min(pending.interval * 2, config_.resend_after_max);
  pending.again_at = now + pending.interval;
}

void StoreClient::advance(const Reach& reach, TimeNs now, Actions& actions) {
  peers_.resize(reach.shards.size());
  std::vector<bool> anew(peers_.size());
  for (size_t shard = 0; shard < peers_.size(); ++shard) {
    const std::optional<ShardLink>& link = reach.shards[shard];
    Peer& peer = peers_[shard];
    anew[shard] = link && (!peer.reached || peer.incarnation != link->header.incarnation ||
                           peer.shard_incarnation != link->header.shard_incarnation);
    peer = link ? Peer{link->header.incarnation, link->header.shard_incarnation, true} : Peer{};
  }
  std::vector<size_t> in_flight(peers_.size());
  for (const auto& [id, pending] : pending_) {
    if (pending.sent && !anew[pending.request.shard]) ++in_flight[pending.request.shard];
  }
  for (auto& [id, pending] : pending_) {
    const uint32_t shard = pending.request.shard;
    if (!reach.shards[shard]) continue;
    // Weights that another worker was to place, and that has left, are this one's to place.
    const bool takes_over = reach.places && !pending.request.place.empty() && !pending.placed;
    if (pending.sent && !anew[shard]) {
      if (now >= pending.again_at || takes_over) send(id, pending, reach, now, actions);
      continue;
    }
    if (in_flight[shard] >= kInFlightMax) continue;
    ++in_flight[shard];
    pending.interval = 0;
    send(id, pending, reach, now, actions);
  }
}

TimeNs StoreClient::next_deadline() const {
  TimeNs next = kNeverAsked;
  for (const auto& [id, pending] : pending_) {
    if (pending.sent) next = std::min(next, pending.again_at);
  }
  return next;
}

}  // namespace millrace::worker
