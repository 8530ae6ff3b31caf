#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/group/peer_core.h"
#include "worker/peer/transport/communicator.h"

namespace millrace::peer {

enum class Progress : uint8_t {
  kByCaller = 1,  ///< in start(), test() and wait()
  kByThread = 2,  ///< on a thread of the group's own, also while the caller computes
};

class PeerGroup;

/// Holds a collective under way, and its result. Movable; one owner. The group outlives it. A collective that no caller
/// waits for costs its status, some 100 bytes, as long as the group lives.
///
/// Threads  as the group's.
template <typename R>
class Pending {
 public:
  Pending() = default;

  /// Moves the group along; true where the result is there.
  bool test();
  /// Waits for it, at most this long; true where the result is there.
  bool wait_for(TimeNs at_most);
  /// Waits for it. Errors  the collective's; and where the group ended: timeout, unavailable, job_mismatch, each naming
  ///                       the rank.
  Result<R> wait();

 private:
  friend class PeerGroup;
  Pending(PeerGroup& group, uint32_t collective, std::shared_ptr<std::optional<Result<R>>> result)
      : group_(&group), collective_(collective), result_(std::move(result)) {}

  PeerGroup* group_ = nullptr;
  uint32_t collective_ = 0;
  std::shared_ptr<std::optional<Result<R>>> result_;
};

/// Runs one rank's share of the collectives of a fixed set of ranks, over any communicator; several may be in flight.
///
/// Order    all ranks start the same collectives in the same order.
/// Ends     with the first failure, on every rank within GroupOptions::silence_ms_max and a quarter. Then every
///          collective has an error that names the rank at fault, and a new group is needed.
/// Threads  any. Where the callers make progress and several of them wait, each sees the progress of the others
///          within 100 ms.
class PeerGroup {
 public:
  /// The communicator outlives the group.
  PeerGroup(Communicator& communicator, const GroupOptions& options, Progress progress);
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;
  /// Ends the group where something is under way.
  ~PeerGroup();

  uint32_t rank() const { return communicator_.rank(); }
  uint32_t size() const { return communicator_.size(); }

  /// description   text on which ranks must agree. body: a coroutine function, called once; its captures are kept
  ///               meanwhile.
  /// Errors        the group's, where it has ended.
  template <typename R, typename Body>
  Result<Pending<R>> start(std::string description, Body body);

  /// allreduce outlives the pending result, and has one run at a time.
  ///
  /// state  what else the ranks must have alike, behind a blank: a part of the description.
  Result<Pending<Reduced>> start_allreduce(Allreduce& allreduce, const AllreduceSettings& settings, Contribution given,
                                           const std::string& state = {});

  /// Makes progress where the callers make it: for one that does something else for long, so that others find it alive.
  /// Else nothing.
  void make_progress();

  /// Returns why the group has ended, and which rank is at fault.
  std::optional<GroupFailure> failure() const;
  Traffic traffic() const;
  /// Returns the length of the longest message body that the transport carries.
  uint64_t body_bytes_max() const { return communicator_.body_bytes_max(); }

 private:
  template <typename R>
  friend class Pending;

  template <typename R>
  static Task<Status> store(Task<Result<R>> task, std::shared_ptr<std::optional<Result<R>>> result) {
    result->emplace(co_await std::move(task));
    if (!**result) co_return std::unexpected((*result)->error());
    co_return Status{};
  }

  Result<uint32_t> start_core(Collective collective);
  bool test_core(uint32_t collective);
  bool wait_core_for(uint32_t collective, TimeNs at_most);
  Status wait_core(uint32_t collective);
  void run_pass();
  void take_in();
  bool take_message(Actions& actions);
  void wait_for_messages(std::unique_lock<std::mutex>& lock, TimeNs at_most);
  void execute_actions(Actions&& actions);
  void run_thread();

  Communicator& communicator_;
  Progress progress_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  PeerCore core_;
  bool closing_ = false;
  uint32_t waiting_ = 0;  ///< callers that are blocked on messages from the group's thread
  std::jthread thread_;
};

template <typename R>
bool Pending<R>::test() {
  return group_->test_core(collective_);
}

template <typename R>
bool Pending<R>::wait_for(TimeNs at_most) {
  return group_->wait_core_for(collective_, at_most);
}

template <typename R>
Result<R> Pending<R>::wait() {
  if (Status status = group_->wait_core(collective_); !status) return std::unexpected(status.error());
  return std::move(**result_);
}

template <typename R, typename Body>
Result<Pending<R>> PeerGroup::start(std::string description, Body body) {
  auto result = std::make_shared<std::optional<Result<R>>>();
  auto number = start_core({std::move(description), [body = std::move(body), result](Channel& channel) mutable {
                              return store<R>(body(channel), result);
                            }});
  if (!number) return std::unexpected(number.error());
  return Pending<R>(*this, *number, std::move(result));
}

inline Result<Pending<Reduced>> PeerGroup::start_allreduce(Allreduce& allreduce, const AllreduceSettings& settings,
                                                           Contribution given, const std::string& state) {
  return start<Reduced>(description_of(allreduce, settings) + state,
                        [&allreduce, given = std::move(given)](Channel& channel) mutable {
                          return allreduce.run(channel, std::move(given));
                        });
}

}  // namespace millrace::peer
