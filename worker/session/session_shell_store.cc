#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/stream/rows.h"
#include "protocol/base/limits.h"
#include "worker/session/session_shell.h"

/// Weights that the shards hold: callers cut a pull into runs of parts, the session thread asks for them and fills the
/// caller's array.
namespace millrace::worker {
namespace {

constexpr uint64_t kLongQueueBytes = 32 << 20;

struct Place {
  protocol::PartLayout part;
  uint64_t begin = 0;  ///< of the tensor's entries of the part, in the part
  uint64_t end = 0;
  uint64_t at = 0;  ///< where that is in the tensor
};

/// Returns the parts that hold [begin, end) of a tensor, in their order.
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

/// Returns the bytes of the rows' first indices, each moved by `shift`, which may wrap around.
SharedBytes first_indices(std::span<const uint32_t> rows, uint32_t width, uint32_t shift) {
  ByteBuffer bytes(rows.size_bytes());
  for (size_t at = 0; at < rows.size(); ++at) {
    const uint32_t index = rows[at] * width + shift;
    std::memcpy(bytes.data() + at * sizeof(index), &index, sizeof(index));
  }
  return SharedBytes::from(std::move(bytes));
}

/// Cuts rows of a tensor into requests, place by place.
class RowCut {
 public:
  RowCut(std::span<const uint32_t> rows, uint32_t width, std::span<float> out)
      : rows_(rows), width_(width), out_(out) {}

  /// Adds the requests for the rows, and pieces of rows, in the tensor's next place.
  void cut(const Place& place, std::vector<StoreClient::Request>& pieces) {
    const uint64_t end = place.at + (place.end - place.begin);
    while (next_ < rows_.size()) {
      const uint64_t begin = begin_of_next();
      if (begin >= end) return;
      if (begin >= place.at && add_whole_rows(place, end, pieces)) continue;
      add_range(place, std::max(begin, place.at), std::min(begin + width_, end), pieces);
      if (begin + width_ > end) return;  // the next place has the rest of the row
      ++next_;
    }
  }

 private:
  uint64_t begin_of_next() const { return uint64_t{rows_[next_]} * width_; }

  StoreClient::Request& add(const Place& place, size_t at, size_t count, std::vector<StoreClient::Request>& pieces) {
    StoreClient::Request& piece = pieces.emplace_back();
    piece.part = place.part.part;
    piece.shard = place.part.shard;
    piece.out = out_.subspan(at, count);
    return piece;
  }

  /// Adds the next rows of those that end in the place, as many as one pull takes. Returns false where it takes none.
  bool add_whole_rows(const Place& place, uint64_t end, std::vector<StoreClient::Request>& pieces) {
    const auto from = rows_.begin() + static_cast<std::ptrdiff_t>(next_);
    const auto whole = static_cast<uint64_t>(std::lower_bound(from, rows_.end(), end / width_) - from);
    const size_t count = std::min<uint64_t>(whole, protocol::kPullValuesMax / width_);
    if (count == 0) return false;
    StoreClient::Request& piece = add(place, next_ * width_, count * width_, pieces);
    piece.run = width_;
    piece.indices = first_indices(rows_.subspan(next_, count), width_, static_cast<uint32_t>(place.begin - place.at));
    next_ += count;
    return true;
  }

  /// Adds entries [begin, end) of the tensor, which are of the next row.
  void add_range(const Place& place, uint64_t begin, uint64_t end, std::vector<StoreClient::Request>& pieces) {
    for (uint64_t at = begin; at < end; at += protocol::kPullValuesMax) {
      const uint64_t count = std::min<uint64_t>(end - at, protocol::kPullValuesMax);
      StoreClient::Request& piece = add(place, next_ * width_ + (at - begin_of_next()), count, pieces);
      piece.offset = place.begin + (at - place.at);
      piece.count = count;
    }
  }

  std::span<const uint32_t> rows_;
  uint32_t width_;
  std::span<float> out_;
  size_t next_ = 0;  ///< the first row with entries that no request has
};

}  // namespace

/// Holds a pull that the session thread was asked for. Its end withdraws the remaining requests: nothing points to the
/// caller's PullCall or `out` afterwards. The constructor takes all memory that the end needs.
class SessionShell::RecurringPull {
 public:
  explicit RecurringPull(SessionShell& shell) : shell_(shell), withdrawal_(shell, [this] { withdraw_there(); }) {}
  ~RecurringPull() { end(); }
  RecurringPull(const RecurringPull&) = delete;
  RecurringPull& operator=(const RecurringPull&) = delete;

  /// Asks for every piece, or for none where memory runs out.
  void ask(std::span<StoreClient::Request> pieces, uint64_t at_least_step) {
    shell_.run_there([&] {
      for (StoreClient::Request& piece : pieces) {
        piece.at_least = at_least_step;
        piece.own_steps = shell_.core_.part_steps_applied(piece.part);
      }
      first_ = shell_.store_.ask_all(pieces);
      count_ = pieces.size();
    });
  }
  void end() {
    if (count_ != 0) withdrawal_.run();
  }
  /// Notes that every piece was answered: there is nothing to withdraw.
  void note_answered() { count_ = 0; }

 private:
  void withdraw_there() {
    for (; count_ != 0; --count_) shell_.store_.cancel(first_++);
  }

  SessionShell& shell_;
  uint64_t first_ = 0;
  size_t count_ = 0;
  Errand withdrawal_;
};

Status SessionShell::check_store(size_t tensor) const {
  if (auto valid = check_tensor(tensor); !valid) return valid;
  if (core_.spec().has_store()) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the job has no store: its shards hold no weights; give JobConfig::store an optimizer, as sgd:0.1");
}

CallResult<std::optional<PulledSteps>> SessionShell::pull(size_t tensor, uint64_t begin, std::span<float> out,
                                                          const PullOptions& options) {
  if (auto valid = check_store(tensor); !valid) return std::unexpected(valid.error());
  const uint64_t dimension = dimension_of(tensor);
  if (begin > dimension || out.size() > dimension - begin) {
    return fail(ErrorCode::kInvalidArgument, std::to_string(out.size()) + " weights from " + std::to_string(begin) +
                                                 " on, of a tensor of dimension " + std::to_string(dimension));
  }
  std::vector<StoreClient::Request> pieces;
  for (const Place& place : places_of(core_, gates_[tensor].bucket, tensor, begin, begin + out.size())) {
    for (uint64_t at = place.begin; at < place.end; at += protocol::kPullValuesMax) {
      StoreClient::Request& piece = pieces.emplace_back();
      piece.part = place.part.part;
      piece.shard = place.part.shard;
      piece.offset = at;
      piece.count = std::min<uint64_t>(place.end - at, protocol::kPullValuesMax);
      piece.out = out.subspan(place.at + (at - place.begin) - begin, piece.count);
    }
  }
  return carry_out_pull(std::move(pieces), options);
}

CallResult<std::optional<PulledSteps>> SessionShell::pull_rows(size_t tensor, uint32_t width,
                                                               std::span<const uint32_t> rows, std::span<float> out,
                                                               const PullOptions& options) {
  if (auto valid = check_store(tensor); !valid) return std::unexpected(valid.error());
  if (auto valid = check_rows(width, rows, out.size(), dimension_of(tensor)); !valid)
    return std::unexpected(valid.error());
  if (!std::ranges::is_sorted(rows, std::less_equal<>()))
    return fail(ErrorCode::kInvalidArgument, "indices to pull increase strictly");
  std::vector<StoreClient::Request> pieces;
  RowCut cut(rows, width, out);
  for (const Place& place : places_of(core_, gates_[tensor].bucket, tensor, 0, dimension_of(tensor)))
    cut.cut(place, pieces);
  return carry_out_pull(std::move(pieces), options);
}

CallResult<bool> SessionShell::place_weights(std::span<const std::span<const float>> weights,
                                             std::chrono::milliseconds timeout) {
  if (auto valid = check_store(0); !valid) return std::unexpected(valid.error());
  const auto refuse = [](const std::string& why) { return fail(ErrorCode::kInvalidArgument, why); };
  if (core_.spec().store.begin != protocol::StoreBegin::kWorker)
    return refuse("the store does not begin with a worker's weights: set Store::begin to kWorker");
  if (weights.size() != gates_.size()) {
    return refuse("weights of " + std::to_string(weights.size()) + " tensors for a job of " +
                  std::to_string(gates_.size()) + ": a store begins with all of them");
  }
  std::map<uint32_t, StoreClient::Request> by_part;
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
      StoreClient::Request& request = by_part[place.part.part];
      request.part = place.part.part;
      request.shard = place.part.shard;
      request.place.push_back(weights[tensor].subspan(place.at, place.end - place.begin));
    }
  }
  std::vector<StoreClient::Request> pieces;
  for (auto& [part, piece] : by_part) pieces.push_back(std::move(piece));
  const auto done = carry_out_pull(std::move(pieces), {.at_least_step = 0, .timeout = timeout});
  if (!done) return std::unexpected(done.error());
  return done->has_value();
}

CallResult<std::optional<PulledSteps>> SessionShell::carry_out_pull(std::vector<StoreClient::Request>&& pieces,
                                                                    const PullOptions& options) {
  if (pieces.empty()) return PulledSteps{};
  const Moment deadline = deadline_of(options.timeout);
  PullCall call;
  call.left = pieces.size();
  call.steps.least = UINT64_MAX;
  for (StoreClient::Request& piece : pieces) piece.call = &call;
  RecurringPull standing(*this);
  standing.ask(pieces, options.at_least_step);
  std::unique_lock lock(mutex_);
  const auto over = [&] { return phase_ == Phase::kFinished || error_; };
  const auto ended = [&] { return call.left == 0 || call.error || over(); };
  bool given_up = false;
  const auto next_look = [&] {
    return options_.give_up ? std::min(deadline, Moment::clock::now() + kAskEvery) : deadline;
  };
  while (!given_up && !changed_.wait_until(lock, next_look(), ended) && Moment::clock::now() < deadline) {
    lock.unlock();
    given_up = options_.give_up && options_.give_up();
    lock.lock();
  }
  if (call.left == 0) standing.note_answered();
  std::optional<CallError> why;
  if (error_) {
    why = error_;
  } else if (phase_ == Phase::kFinished) {
    why = Error{ErrorCode::kInvalidArgument, "the session is finished: nothing can be pulled"};
  }
  lock.unlock();
  // Nothing is written to the caller's array any more after this.
  standing.end();
  if (call.error) return std::unexpected(CallError(std::move(*call.error), JobErrorOrigin::kJob));
  if (call.left == 0) return call.steps;  // it came meanwhile
  if (why) return std::unexpected(*why);
  return std::optional<PulledSteps>();
}

StoreClient::Reach SessionShell::reach() const {
  StoreClient::Reach reach;
  for (uint32_t shard = 0; shard < wires_.size(); ++shard) {
    reach.shards.push_back(core_.link_to(shard));
    const uint64_t queued = queued_bytes(shard);
    reach.queued.push_back(queued > kLongQueueBytes);
    reach.sending.push_back(queued > protocol::Connection::kSendingBytes);
  }
  reach.steps_applied = [this](uint32_t part) { return core_.part_steps_applied(part); };
  const std::vector<protocol::Member>& members = core_.membership().members;
  reach.places = !members.empty() && members.front().worker == options_.worker;
  return reach;
}

uint64_t SessionShell::queued_bytes(uint32_t shard) const {
  const ShardConnection& wire = wires_[shard];
  if (!wire.backlog.empty()) return UINT64_MAX;
  return wire.connection ? wire.connection->unsent_bytes() : 0;
}

bool SessionShell::has_long_queue() const {
  for (uint32_t shard = 0; shard < wires_.size(); ++shard) {
    if (queued_bytes(shard) > kLongQueueBytes) return true;
  }
  return false;
}

void SessionShell::ask_stores(TimeNs now) {
  if (!store_.idle()) store_.advance(reach(), now, actions_);
}

void SessionShell::take_pulled() {
  for (const StoreClient::Done& done : pulled_) {
    if (!done.error && !done.out.empty()) std::memcpy(done.out.data(), done.values.bytes.data(), done.out.size_bytes());
    PullCall& call = *done.call;
    const std::lock_guard lock(mutex_);
    if (done.error) call.error = done.error;
    --call.left;
    call.steps.least = std::min(call.steps.least, done.n);
    call.steps.most = std::max(call.steps.most, done.n);
    if (call.left == 0 || done.error) changed_.notify_all();
  }
  pulled_.clear();
}

}  // namespace millrace::worker
