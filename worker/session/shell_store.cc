#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/base/clock.h"
#include "protocol/limits.h"
#include "worker/session/shell.h"

/// Weights that the shards hold: callers cut a pull into runs of parts, the session thread asks for them and fills the caller's
/// array.
namespace millrace::worker {
namespace {

struct Place {
  protocol::PartLayout part;
  uint64_t begin = 0;  ///< of what the tensor has of the part, in the part
  uint64_t end = 0;
  uint64_t at = 0;  ///< where that is in the tensor
};

/// The parts that hold [begin, end) of a tensor, in their order.
std::vector<Place> places_of(const SessionCore& core, uint32_t bucket, size_t tensor, uint64_t begin, uint64_t end) {
  std::vector<Place> places;
  const protocol::BucketLayout& layout = core.layout().buckets[bucket];
  const auto member = std::ranges::find(layout.members, static_cast<uint32_t>(tensor), &protocol::BucketMember::tensor);
  const uint64_t from = member->offset + begin;
  const uint64_t to = member->offset + end;
  for (uint32_t number = layout.first_part; number < layout.first_part + layout.part_count; ++number) {
    const protocol::PartLayout& part = core.layout().parts[number];
    const uint64_t first = std::max(from, part.begin);
    const uint64_t last = std::min(to, part.end);
    if (first >= last) continue;
    places.push_back({part, first - part.begin, last - part.begin, first - member->offset});
  }
  return places;
}

}  // namespace

Status SessionShell::check_store(size_t tensor) const {
  if (auto valid = check_tensor(tensor); !valid) return valid;
  if (core_.spec().has_store()) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the job has no store: its shards hold no weights; give JobOptions::store an optimizer, as sgd:0.1");
}

Result<std::optional<PulledSteps>> SessionShell::pull(size_t tensor, uint64_t begin, std::span<float> out,
                                                      const PullOptions& options) {
  if (auto valid = check_store(tensor); !valid) return std::unexpected(valid.error());
  const uint64_t dimension = dimension_of(tensor);
  if (begin > dimension || out.size() > dimension - begin) {
    return fail(ErrorCode::kInvalidArgument, std::to_string(out.size()) + " weights from " + std::to_string(begin) +
                                                 " on, of a tensor of dimension " + std::to_string(dimension));
  }
  std::vector<PullPiece> pieces;
  for (const Place& place : places_of(core_, gates_[tensor].bucket, tensor, begin, begin + out.size())) {
    for (uint64_t at = place.begin; at < place.end; at += protocol::kPullValuesMax) {
      PullPiece& piece = pieces.emplace_back();
      piece.request.part = place.part.part;
      piece.request.shard = place.part.shard;
      piece.request.offset = at;
      piece.request.count = std::min<uint64_t>(place.end - at, protocol::kPullValuesMax);
      piece.out = out.subspan(place.at + (at - place.begin) - begin, piece.request.count);
    }
  }
  return carry_out_pull(std::move(pieces), options);
}

Result<std::optional<PulledSteps>> SessionShell::pull_indices(size_t tensor, std::span<const uint32_t> indices,
                                                              std::span<float> out, const PullOptions& options) {
  if (auto valid = check_store(tensor); !valid) return std::unexpected(valid.error());
  const auto refuse = [](const std::string& why) { return fail(ErrorCode::kInvalidArgument, why); };
  if (indices.size() != out.size())
    return refuse(std::to_string(indices.size()) + " indices and " + std::to_string(out.size()) + " places for them");
  if (!std::ranges::is_sorted(indices, std::less_equal<>())) return refuse("indices to pull increase strictly");
  if (!indices.empty() && indices.back() >= dimension_of(tensor)) {
    return refuse("index " + std::to_string(indices.back()) + " of a tensor of dimension " +
                  std::to_string(dimension_of(tensor)));
  }
  std::vector<PullPiece> pieces;
  size_t next = 0;
  for (const Place& place : places_of(core_, gates_[tensor].bucket, tensor, 0, dimension_of(tensor))) {
    const uint64_t end = place.at + (place.end - place.begin);
    while (next < indices.size() && indices[next] < end) {
      PullPiece& piece = pieces.emplace_back();
      piece.request.part = place.part.part;
      piece.request.shard = place.part.shard;
      const size_t first = next;
      for (; next < indices.size() && indices[next] < end && next - first < protocol::kPullValuesMax; ++next) {
        piece.request.indices.push_back(static_cast<uint32_t>(indices[next] - place.at + place.begin));
      }
      piece.out = out.subspan(first, next - first);
    }
  }
  return carry_out_pull(std::move(pieces), options);
}

Result<bool> SessionShell::place_weights(std::span<const std::span<const float>> weights,
                                         std::chrono::milliseconds timeout) {
  if (auto valid = check_store(0); !valid) return std::unexpected(valid.error());
  const auto refuse = [](const std::string& why) { return fail(ErrorCode::kInvalidArgument, why); };
  if (core_.spec().store.begin != protocol::StoreBegin::kWorker)
    return refuse("the store does not begin with a worker's weights: set JobOptions::store_begin to \"worker\"");
  if (weights.size() != gates_.size()) {
    return refuse("weights of " + std::to_string(weights.size()) + " tensors for a job of " +
                  std::to_string(gates_.size()) + ": a store begins with all of them");
  }
  std::map<uint32_t, PullPiece> by_part;
  for (size_t tensor = 0; tensor < weights.size(); ++tensor) {
    const uint64_t dimension = dimension_of(tensor);
    if (weights[tensor].size() != dimension) {
      return refuse(std::to_string(weights[tensor].size()) + " weights for tensor " + std::to_string(tensor) +
                    " of dimension " + std::to_string(dimension));
    }
    if (!std::ranges::all_of(weights[tensor], [](float one) { return std::isfinite(one); }))
      return fail(ErrorCode::kNonFinite, "NaN or infinity among first weights");
    // Tensors that share a part are in it in their order.
    for (const Place& place : places_of(core_, gates_[tensor].bucket, tensor, 0, dimension)) {
      StoreClient::Request& request = by_part[place.part.part].request;
      request.part = place.part.part;
      request.shard = place.part.shard;
      request.place.push_back(weights[tensor].subspan(place.at, place.end - place.begin));
    }
  }
  std::vector<PullPiece> pieces;
  for (auto& [part, piece] : by_part) pieces.push_back(std::move(piece));
  const auto done = carry_out_pull(std::move(pieces), {.at_least_step = 0, .timeout = timeout});
  if (!done) return std::unexpected(done.error());
  return done->has_value();
}

Result<std::optional<PulledSteps>> SessionShell::carry_out_pull(std::vector<PullPiece>&& pieces,
                                                                const PullOptions& options) {
  if (pieces.empty()) return PulledSteps{};
  const Moment deadline = deadline_of(options.timeout);
  PullCall call;
  call.left = pieces.size();
  call.steps.least = UINT64_MAX;
  std::vector<uint64_t> asked;
  asked.reserve(pieces.size());
  run_there([&] {
    for (PullPiece& piece : pieces) {
      piece.request.at_least = std::max(options.at_least_step, core_.part_steps_applied(piece.request.part));
      const uint64_t id = store_.ask(std::move(piece.request));
      asked.push_back(id);
      pulling_[id] = {&call, piece.out};
    }
  });
  std::unique_lock lock(mutex_);
  const auto over = [&] { return phase_ == Phase::kFinished || error_; };
  changed_.wait_until(lock, deadline, [&] { return call.left == 0 || call.error || over(); });
  if (call.left == 0) return call.steps;
  std::optional<Error> why;
  if (phase_ == Phase::kFinished) why = {ErrorCode::kInvalidArgument, "the session is finished: nothing can be pulled"};
  if (error_) why = *error_;
  lock.unlock();
  // Nothing is written to the caller's array any more once this has been carried out.
  run_there([&] {
    for (const uint64_t id : asked) {
      store_.cancel(id);
      pulling_.erase(id);
    }
  });
  if (call.error) return std::unexpected(*call.error);
  if (call.left == 0) return call.steps;  // it came meanwhile
  if (why) return std::unexpected(*why);
  return std::optional<PulledSteps>();
}

StoreClient::Reach SessionShell::reach() const {
  StoreClient::Reach reach;
  for (uint32_t shard = 0; shard < wires_.size(); ++shard) reach.shards.push_back(core_.header_to(shard));
  const std::vector<protocol::Member>& members = core_.view().members;
  reach.places = !members.empty() && members.front().worker == options_.worker;
  return reach;
}

void SessionShell::ask_stores(TimeNs now) {
  if (!store_.idle()) store_.turn(reach(), now, actions_);
}

void SessionShell::take_pulled() {
  for (const StoreClient::Done& done : pulled_) {
    const auto at = pulling_.find(done.id);
    if (at == pulling_.end()) continue;
    const Pulling pulling = at->second;
    pulling_.erase(at);
    if (!done.error && !pulling.out.empty())
      std::memcpy(pulling.out.data(), done.values.bytes.data(), pulling.out.size_bytes());
    const std::lock_guard lock(mutex_);
    if (done.error) pulling.call->error = done.error;
    --pulling.call->left;
    pulling.call->steps.least = std::min(pulling.call->steps.least, done.n);
    pulling.call->steps.most = std::max(pulling.call->steps.most, done.n);
    if (pulling.call->left == 0 || done.error) changed_.notify_all();
  }
  pulled_.clear();
}

}  // namespace millrace::worker
