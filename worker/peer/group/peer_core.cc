#include "worker/peer/group/peer_core.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <new>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "kernels/base/plain_text.h"

namespace millrace::peer {
namespace {

constexpr TimeNs kCoreNever = std::numeric_limits<TimeNs>::max();
constexpr int kAsksASilence = 4;  ///< how often one is asked while it may be silent
constexpr size_t kTextBytesMax = 4096;
constexpr size_t kDoneMax = 64;

TimeNs ns(uint32_t ms) { return static_cast<TimeNs>(ms) * kNsPerMs; }

std::string rank_text(uint32_t rank) { return "rank " + std::to_string(rank); }

ByteBuffer bytes_of(const std::string& text) {
  ByteBuffer bytes;
  ByteWriter(bytes).put_array(std::span<const char>(text.data(), std::min(text.size(), kTextBytesMax)));
  return bytes;
}

std::string core_text_of(ByteSpan bytes) {
  return plain_text_of(std::string(bytes.begin(), bytes.end()), kTextBytesMax);
}

SharedBytes abort_body_of(const GroupFailure& failure) {
  ByteBuffer body;
  ByteWriter out(body);
  out.put(static_cast<uint16_t>(failure.error.code));
  out.put(failure.rank ? *failure.rank + 1 : uint32_t{0});
  const ByteBuffer text = bytes_of(failure.error.message);
  out.put_bytes(text);
  return SharedBytes::from(std::move(body));
}

}  // namespace

struct PeerCore::Running {
  Running(uint32_t number_, uint32_t rank, uint32_t size, ChannelSink& sink, Collective what_)
      : number(number_),
        what(std::move(what_)),
        signature(hash64(what.description)),
        channel(number_, rank, size, sink) {}

  uint32_t number;
  Collective what;
  uint64_t signature;
  Channel channel;
  std::optional<Task<Status>> task;
};

/// One call from outside: its time, its actions, and nothing left of a group that ended in it.
class PeerCore::Call {
 public:
  Call(PeerCore& core, TimeNs now, Actions& actions) : core_(core) {
    core.now_ = now;
    core.actions_ = &actions;
  }
  ~Call() {
    core_.finish_ready();
    core_.actions_ = nullptr;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  PeerCore& core_;
};

PeerCore::PeerCore(uint32_t rank, uint32_t size, const GroupOptions& options)
    : rank_(rank), size_(size), options_(options) {
  MILLRACE_CHECK(rank < size, rank, size);
  options_.silence_ms_max = std::max<uint32_t>(options_.silence_ms_max, kAsksASilence);
}

PeerCore::~PeerCore() = default;

TimeNs PeerCore::clock() const { return options_.clock != nullptr ? options_.clock() : now_ + actions_->work; }

void PeerCore::send_data(uint32_t collective, uint32_t to, uint32_t tag, Packet packet) {
  MILLRACE_CHECK(to < size_ && to != rank_, to, size_, rank_);
  PeerMessage message;
  message.form = packet.form;
  message.collective = collective;
  message.tag = tag;
  message.signature = sending_signature_;
  message.body = std::move(packet.body);
  actions_->sends.push_back({to, std::move(message), actions_->work});
}

void PeerCore::send(uint32_t to, MessageKind kind, uint32_t collective, uint64_t signature, ByteBuffer body) {
  PeerMessage message;
  message.kind = kind;
  message.collective = collective;
  message.signature = signature;
  message.body = SharedBytes::from(std::move(body));
  actions_->sends.push_back({to, std::move(message), actions_->work});
}

Result<uint32_t> PeerCore::start(Collective collective, TimeNs now, Actions& actions) {
  if (failure_) return std::unexpected(failure_->error);
  if (next_ == options_.collectives_max) {
    return fail(ErrorCode::kLimitExceeded, "the group has run " + std::to_string(next_) +
                                               " collectives, and has no number for another one: make a new group");
  }
  const Call call(*this, now, actions);
  const uint32_t number = next_++;
  auto& running =
      *running_
           .emplace(number, std::make_unique<Running>(number, rank_, size_, static_cast<ChannelSink&>(*this),
                                                      std::move(collective)))
           .first->second;
  step(running, [&running] {
    running.task.emplace(running.what.body(running.channel));
    running.task->start();
  });
  const auto early = early_.find(number);
  if (early == early_.end()) return number;
  auto messages = std::move(early->second);
  early_.erase(early);
  for (auto& [from, message] : messages) {
    early_bytes_ -= message.body.bytes.size() + sizeof(PeerMessage);
    if (failure_) break;
    take_data(from, std::move(message));
  }
  return number;
}

/// Runs the collective on, and takes it out where it has come to its end.
template <typename Advance>
void PeerCore::step(Running& running, Advance advance) {
  const uint32_t number = running.number;
  sending_signature_ = running.signature;
  Status status;
  try {
    advance();
    if (!running.task->done()) return;
    status = running.task->take();
  } catch (const std::bad_alloc&) {
    status = fail(ErrorCode::kLimitExceeded, "no memory for a collective");
  } catch (const std::exception& problem) {
    status = fail(ErrorCode::kInternal, std::string("a collective failed: ") + problem.what());
  }
  if (!status) {
    // The others wait for what will not come. At fault for a malformed message is its sender, which is not known here.
    const bool is_own = status.error().code != ErrorCode::kMalformed;
    return end_group({{status.error().code, rank_text(rank_) + ": " + status.error().message},
                      is_own ? std::optional(rank_) : std::nullopt},
                     Tell::kAll);
  }
  ended_.emplace(number, std::move(status));
  done_.emplace_back(number, std::move(running.what.description));
  if (done_.size() > kDoneMax) done_.pop_front();
  if (latest_ == &running) latest_ = nullptr;
  running_.erase(number);
}

void PeerCore::on_message(uint32_t from, PeerMessage message, TimeNs now, Actions& actions) {
  if (from >= size_ || from == rank_) return;
  const Call call(*this, now, actions);
  if (failure_) {
    // The abort to the asking rank may have been lost. Without this answer it would report this rank as silent.
    if (message.kind == MessageKind::kAsk) send_abort(from, abort_body_of(*failure_));
    return;
  }
  on_heard(from, now);
  switch (message.kind) {
    case MessageKind::kData: return on_data(from, std::move(message));
    case MessageKind::kAsk: return on_ask(from, message);
    case MessageKind::kAnswer: return on_answer(from, message);
    case MessageKind::kDiffers: return on_differs(from, message);
    case MessageKind::kAbort: return on_abort(from, message);
  }
}

void PeerCore::on_heard(uint32_t from, TimeNs now) {
  // Not erased: two ranks that ask each other would do so at once, again and again.
  if (const auto at = asked_.find(from); at != asked_.end()) at->second = {.heard = now};
}

void PeerCore::on_data(uint32_t from, PeerMessage message) {
  const uint32_t number = message.collective;
  if (number < next_) return take_data(from, std::move(message));
  early_bytes_ += message.body.bytes.size() + sizeof(PeerMessage);
  if (early_bytes_ > options_.early_bytes_max) {
    return end_group(
        {{ErrorCode::kLimitExceeded, rank_text(rank_) + " has not started collective " + std::to_string(number) +
                                         " and holds " + std::to_string(early_bytes_) +
                                         " bytes for it and later ones: " + rank_text(from) + " is too far ahead"},
         from},
        Tell::kAll);
  }
  early_[number].emplace_back(from, std::move(message));
}

PeerCore::Running* PeerCore::find_running(uint32_t number) {
  if (latest_ != nullptr && latest_->number == number) return latest_;
  const auto at = running_.find(number);
  if (at == running_.end()) return nullptr;
  latest_ = at->second.get();
  return latest_;
}

void PeerCore::take_data(uint32_t from, PeerMessage&& message) {
  Running* const found = find_running(message.collective);
  if (found == nullptr) {
    ++unexpected_;
    return;
  }
  Running& running = *found;
  if (!is_same(running, from, message.signature)) return;
  bool expected = true;
  step(running, [&] { expected = running.channel.arrive(from, message.tag, {message.form, std::move(message.body)}); });
  if (!expected) ++unexpected_;
}

/// Returns whether the sender has the same collective. Where not, it gets this rank's description, and ends the group
/// with both.
bool PeerCore::is_same(const Running& running, uint32_t from, uint64_t signature) {
  if (signature == running.signature) return true;
  send(from, MessageKind::kDiffers, running.number, running.signature, bytes_of(running.what.description));
  return false;
}

void PeerCore::on_ask(uint32_t from, const PeerMessage& message) {
  const uint32_t number = message.collective;
  RunState run_state = RunState::kNotStarted;
  uint64_t signature = 0;
  if (const auto at = running_.find(number); at != running_.end()) {
    if (!is_same(*at->second, from, message.signature)) return;
    run_state = RunState::kRunning;
    signature = at->second->signature;
  } else if (number < next_) {
    run_state = RunState::kDone;
  }
  ByteBuffer body;
  ByteWriter(body).put(static_cast<uint8_t>(run_state));
  send(from, MessageKind::kAnswer, number, signature, std::move(body));
}

void PeerCore::on_answer(uint32_t from, const PeerMessage& message) {
  const auto at = running_.find(message.collective);
  if (at == running_.end() || message.body.bytes.size() != 1) return;
  const Running& running = *at->second;
  const auto run_state = static_cast<RunState>(message.body.bytes[0]);
  if (run_state == RunState::kRunning && !is_same(running, from, message.signature)) return;
  asked_[from] = {now_, false};
  const auto& waiting = running.channel.waiting();
  if (!waiting || waiting->from() != from) return;
  // A rank that waits for one that waits for a third must not be the first to give up: the third is at fault.
  const bool started = run_state != RunState::kNotStarted;
  const uint64_t limit_ms = uint64_t{options_.start_ms_max} * (started ? 2 : 1);
  if (now_ - waiting->since < static_cast<TimeNs>(limit_ms) * kNsPerMs) return;
  const std::string what = " collective " + std::to_string(running.number) + " (" + running.what.description + ")";
  const std::string time = " within " + std::to_string(limit_ms) + " ms";
  const std::string alive = rank_text(from) + " is alive, but ";
  end_group({{ErrorCode::kTimeout,
              started ? alive + "what " + rank_text(rank_) + " waits for from it in" + what + " has not come" + time
                      : alive + "has not started" + what + time},
             from},
            Tell::kAll);
}

void PeerCore::on_differs(uint32_t from, const PeerMessage& message) {
  const auto at = running_.find(message.collective);
  const auto done = std::ranges::find(done_, message.collective, &std::pair<uint32_t, std::string>::first);
  const std::string here = at != running_.end()  ? at->second->what.description
                           : done != done_.end() ? done->second
                                                 : "another collective";
  end_group({{ErrorCode::kJobMismatch, "collective " + std::to_string(message.collective) + " is '" +
                                           core_text_of(message.body.bytes) + "' on " + rank_text(from) + " and '" +
                                           here + "' on " + rank_text(rank_) + ": all ranks must start the same"},
             from},
            Tell::kAll);
}

void PeerCore::on_abort(uint32_t from, const PeerMessage& message) {
  ByteReader in(message.body.bytes);
  const auto code = in.get<uint16_t>();
  const auto at_fault = in.get<uint32_t>();
  GroupFailure failure{{ErrorCode::kUnavailable, rank_text(from) + " ended the group"}, std::nullopt};
  if (code && at_fault) {
    const std::string_view name = error_code_name(static_cast<ErrorCode>(*code));
    failure.error = {error_code_by_name(name),
                     core_text_of(message.body.bytes.subspan(sizeof(*code) + sizeof(*at_fault)))};
    if (*at_fault != 0 && *at_fault <= size_) failure.rank = *at_fault - 1;
  }
  end_group(std::move(failure), Tell::kNobody);
}

void PeerCore::on_lost(uint32_t rank, TimeNs now, Actions& actions) {
  if (failure_) return;
  const Call call(*this, now, actions);
  end_group({{ErrorCode::kUnavailable, rank_text(rank) + " is gone: its connection has ended"}, rank}, Tell::kAll);
}

void PeerCore::fail_group(GroupFailure failure, TimeNs now, Actions& actions) {
  const Call call(*this, now, actions);
  if (!failure_) end_group(std::move(failure), Tell::kAll);
}

void PeerCore::send_abort(uint32_t to, SharedBytes body) {
  PeerMessage message;
  message.kind = MessageKind::kAbort;
  message.body = std::move(body);
  actions_->sends.push_back({to, std::move(message), actions_->work});
}

/// Destroys what runs where it stands.
void PeerCore::end_group(GroupFailure failure, Tell tell) {
  const SharedBytes body = abort_body_of(failure);
  for (uint32_t to = 0; to < size_ && tell == Tell::kAll; ++to) {
    if (to != rank_) send_abort(to, body);
  }
  failure_ = std::move(failure);
  ending_ = true;
}

/// After a call: nothing of a group that has ended is left, and no coroutine is destroyed from inside.
void PeerCore::finish_ready() {
  if (!std::exchange(ending_, false)) return;
  for (const auto& [number, running] : running_) ended_.emplace(number, std::unexpected(failure_->error));
  latest_ = nullptr;
  running_.clear();
  early_.clear();
  asked_.clear();
}

void PeerCore::prefetch_state() const {
  if (latest_ == nullptr) return;
  prefetch_lines(latest_, sizeof *latest_);
}

void PeerCore::prefetch_code() const {
  if (latest_ == nullptr || !latest_->channel.waiting()) return;
  constexpr size_t kFrameBytes = 384;  // of a waiting one: most of the state with which it continues
  prefetch_lines(latest_->channel.waiting()->who.address(), kFrameBytes);
  for (const void* look : latest_->channel.next_looks()) prefetch_lines(look, 1);
}

void PeerCore::on_tick(TimeNs now, Actions& actions) {
  const Call call(*this, now, actions);
  for (const auto& [number, running] : running_) {
    if (failure_) return;
    look_after(*running);
  }
}

void PeerCore::look_after(const Running& running) {
  const auto& waiting = running.channel.waiting();
  if (!waiting) return;
  const uint32_t from = waiting->from();
  if (left_.contains(from)) {
    return end_group({{ErrorCode::kUnavailable, rank_text(from) + " has left the group"}, from}, Tell::kAll);
  }
  const auto at = asked_.find(from);
  const TimeNs heard = std::max(waiting->since, at == asked_.end() ? TimeNs{0} : at->second.heard);
  const TimeNs silence = ns(options_.silence_ms_max);
  if (at != asked_.end() && at->second.unanswered && now_ - at->second.first >= silence) {
    return end_group({{ErrorCode::kTimeout, rank_text(from) + " has not answered for " +
                                                std::to_string(options_.silence_ms_max) + " ms (" + rank_text(rank_) +
                                                " waits for it in collective " + std::to_string(running.number) + ", " +
                                                running.what.description + "): it is dead or stuck"},
                      from},
                     Tell::kAll);
  }
  if (now_ - waiting->since >= 2 * ns(options_.start_ms_max)) {
    return end_group({{ErrorCode::kTimeout, rank_text(from) + " is alive, but its message for " + rank_text(rank_) +
                                                " in collective " + std::to_string(running.number) + " (" +
                                                running.what.description + ") has not come whole within " +
                                                std::to_string(uint64_t{2} * options_.start_ms_max) + " ms"},
                      from},
                     Tell::kAll);
  }
  const TimeNs last = at == asked_.end() ? heard : std::max(heard, at->second.last);
  if (now_ - last < silence / kAsksASilence) return;
  Asked& asked = asked_[from];
  if (!asked.unanswered) asked.first = now_;
  asked.unanswered = true;
  asked.last = now_;
  send(from, MessageKind::kAsk, running.number, running.signature, {});
}

TimeNs PeerCore::next_deadline() const {
  TimeNs next = kCoreNever;
  const TimeNs between = ns(options_.silence_ms_max) / kAsksASilence;
  for (const auto& [number, running] : running_) {
    const auto& waiting = running->channel.waiting();
    if (!waiting) continue;
    if (left_.contains(waiting->from())) return 0;
    const auto at = asked_.find(waiting->from());
    const TimeNs last = at == asked_.end() ? 0 : std::max(at->second.heard, at->second.last);
    next = std::min(next, std::max(waiting->since, last) + between);
  }
  return next;
}

Status PeerCore::take_status(uint32_t collective) {
  const auto at = ended_.find(collective);
  MILLRACE_CHECK(at != ended_.end(), collective);
  Status status = std::move(at->second);
  ended_.erase(at);
  return status;
}

}  // namespace millrace::peer
