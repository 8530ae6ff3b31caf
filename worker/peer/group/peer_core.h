#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/coroutine_task.h"
#include "worker/peer/channel/message.h"
#include "worker/peer/channel/message_body.h"

namespace millrace::peer {

struct GroupOptions {
  /// Time-out of an answer: a rank that does not answer a query within it counts as dead. Over TCP it counts from the
  /// time when the query is no longer behind a long message. A rank answers while its thread is in the library (start,
  /// test, wait). Where the group makes progress on a thread of its own, it answers always.
  uint32_t silence_ms_max = 10'000;  ///< less than 4 is taken for 4.
  /// Time-out of a start: the group ends when a live rank blocks others for longer in a collective that it has not
  /// started. It also ends when a rank that is in the collective, or past it, blocks others for twice the time.
  uint32_t start_ms_max = 600'000;
  /// Of messages for collectives that were not started here.
  uint64_t early_bytes_max = uint64_t{1} << 32;
  /// Collectives of a group: their numbers must not repeat.
  uint32_t collectives_max = UINT32_MAX;
  /// Clock by which collectives measure themselves. Null: the time of the call, plus the work charged since (simulated
  /// time).
  TimeNs (*clock)() = nullptr;
  /// Memory in which collectives write the bodies that they send; null: on the heap. Outlives the group.
  BodyMemory* bodies = nullptr;
};

/// Describes a collective that a rank starts: the same on every rank, and in the same order.
struct Collective {
  /// "oktopk f32 n=16777216 ...": everything that ranks must agree on; compared among them.
  std::string description;
  /// Makes the coroutine; called once, and kept as long as that.
  std::function<Task<Status>(Channel&)> body;
};

struct Outgoing {
  uint32_t to = 0;
  PeerMessage message;
  TimeNs work_before = 0;  ///< computed since the call began, before this is sent
};

/// Holds the actions that the core requests.
struct Actions {
  std::vector<Outgoing> sends;
  TimeNs work = 0;  ///< computed in all
};

/// Says why a group has ended, and which rank is at fault.
struct GroupFailure {
  Error error;
  std::optional<uint32_t> rank;
};

/// Has memory brought near that will be used soon. begin: or null, then nothing happens.
inline void prefetch_lines(const void* begin, size_t bytes) {
  if (begin == nullptr) return;
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(static_cast<const uint8_t*>(begin) + at);
}

/// Runs collectives of one rank of a group, several at a time, and detects ranks that are dead, stuck, or run another
/// collective. Pure: it takes messages and the time, and returns the messages to send.
/// Ends     the first failure ends the group on every rank: the rank that detects it notifies all others. A group that
///          has ended starts nothing, and answers a question with the failure.
/// Threads  one at a time.
class PeerCore final : private ChannelSink {
 public:
  /// REQUIRES: rank < size.
  PeerCore(uint32_t rank, uint32_t size, const GroupOptions& options);
  ~PeerCore();

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }

  /// Returns the collective's number. Runs it as far as it gets by itself.
  Result<uint32_t> start(Collective collective, TimeNs now, Actions& actions);
  void on_message(uint32_t from, PeerMessage message, TimeNs now, Actions& actions);
  /// Takes the transport's report that bytes of this rank have come, perhaps a part of a message. Also that its machine
  /// takes bytes before a question.
  void on_heard(uint32_t from, TimeNs now);
  /// Takes the transport's report that this rank is gone.
  void on_lost(uint32_t rank, TimeNs now, Actions& actions);
  /// Takes the transport's report that this rank has left in good order, and that all its messages were handed over.
  /// on_tick() ends the group once a collective waits for it.
  void on_left(uint32_t rank) { left_.insert(rank); }
  /// Ends the group, because the transport failed, or the caller gives up.
  void fail_group(GroupFailure failure, TimeNs now, Actions& actions);
  void on_tick(TimeNs now, Actions& actions);
  /// Returns when on_tick() has something to do, if no message comes before.
  TimeNs next_deadline() const;

  /// Returns whether a collective is under way.
  bool busy() const { return !running_.empty(); }
  /// Returns the number of collectives under way.
  size_t running() const { return running_.size(); }
  /// Returns whether it has ended: with a result of its own, or with the group.
  bool ended(uint32_t collective) const { return !running_.contains(collective); }
  /// Returns how it ended. REQUIRES: ended(). Once for each.
  Status take_status(uint32_t collective);
  const std::optional<GroupFailure>& failure() const { return failure_; }
  uint64_t unexpected_messages() const { return unexpected_; }

  /// Prefetches the memory that the next message will touch: first the state of the collective that ran last, then,
  /// once that is cached, its code. For a caller that has thousands of cores in one thread and knows which one is next.
  void prefetch_state() const;
  void prefetch_code() const;

 private:
  enum class RunState : uint8_t { kNotStarted = 1, kRunning = 2, kDone = 3 };
  enum class Tell : uint8_t { kNobody = 1, kAll = 2 };
  struct Running;
  /// Holds the state of a query to a silent rank.
  struct Asked {
    TimeNs heard = 0;  ///< when on_heard() or a message came last
    TimeNs first = 0;  ///< when it was asked first without an answer
    TimeNs last = 0;
    bool unanswered = false;
  };
  class Call;

  void send_data(uint32_t collective, uint32_t to, uint32_t tag, Packet packet) override;
  BodyMemory& body_memory() override { return options_.bodies != nullptr ? *options_.bodies : heap_bodies(); }
  void charge(TimeNs work) override { actions_->work += work; }
  TimeNs now() const override { return now_; }
  TimeNs clock() const override;

  template <typename Advance>
  void step(Running& running, Advance advance);
  void on_data(uint32_t from, PeerMessage message);
  void take_data(uint32_t from, PeerMessage&& message);
  Running* find_running(uint32_t number);
  bool is_same(const Running& running, uint32_t from, uint64_t signature);
  void on_ask(uint32_t from, const PeerMessage& message);
  void on_answer(uint32_t from, const PeerMessage& message);
  void on_differs(uint32_t from, const PeerMessage& message);
  void on_abort(uint32_t from, const PeerMessage& message);
  void look_after(const Running& running);
  void send(uint32_t to, MessageKind kind, uint32_t collective, uint64_t signature, ByteBuffer body);
  void send_abort(uint32_t to, SharedBytes body);
  void end_group(GroupFailure failure, Tell tell);
  void finish_ready();

  uint32_t rank_;
  uint32_t size_;
  Running* latest_ = nullptr;  ///< of running_: whose message came last
  // Of the call under way.
  TimeNs now_ = 0;
  Actions* actions_ = nullptr;
  uint64_t sending_signature_ = 0;
  uint32_t next_ = 0;
  std::map<uint32_t, std::unique_ptr<Running>> running_;
  std::map<uint32_t, Asked> asked_;  ///< by rank
  bool ending_ = false;
  std::optional<GroupFailure> failure_;
  // Up to here: the members that each message touches.
  std::map<uint32_t, Status> ended_;
  std::deque<std::pair<uint32_t, std::string>>
      done_;  ///< names of the last ones, for the error when a rank mistakes a collective
  std::map<uint32_t, std::vector<std::pair<uint32_t, PeerMessage>>> early_;  ///< by collective: sender and message
  uint64_t early_bytes_ = 0;
  uint64_t unexpected_ = 0;
  std::set<uint32_t> left_;  ///< ranks
  GroupOptions options_;
};

}  // namespace millrace::peer
