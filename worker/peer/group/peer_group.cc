#include "worker/peer/group/peer_group.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <string>
#include <utility>

#include "worker/peer/group/short_time_slice.h"

namespace millrace::peer {
namespace {

constexpr TimeNs kWaitMax = 100 * kNsPerMs;
// Of the thread that makes progress: long enough for a piece of its work, or the shortest there are.
constexpr TimeNs kSlice = kNsPerMs;
constexpr TimeNs kSliceOfYielding = 100 * kNsPerUs;
constexpr int kMessagesPerPass = 256;  ///< before their requests are carried out

GroupOptions complete(GroupOptions options, Communicator& communicator) {
  if (options.clock == nullptr) options.clock = &monotonic_now_ns;
  if (options.bodies == nullptr) options.bodies = &communicator;
  return options;
}

}  // namespace

PeerGroup::PeerGroup(Communicator& communicator, const GroupOptions& options, Progress progress)
    : communicator_(communicator),
      progress_(progress),
      core_(communicator.rank(), communicator.size(), complete(options, communicator)) {
  if (progress_ == Progress::kByThread) thread_ = std::jthread([this] { run_thread(); });
}

PeerGroup::~PeerGroup() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (core_.busy() && !core_.failure()) {
      Actions actions;
      core_.fail_group({{ErrorCode::kUnavailable, "rank " + std::to_string(rank()) + " has left the group"}, rank()},
                       communicator_.now(), actions);
      execute_actions(std::move(actions));
    }
  }
  communicator_.wake();
}

// Any exception on the way (out of memory, above all) ends the group: the others must not be blocked on this rank.
void PeerGroup::run_pass() {
  try {
    take_in();
  } catch (const std::exception& problem) {
    Actions actions;
    const std::string rank_text = "rank " + std::to_string(rank());
    core_.fail_group({{ErrorCode::kInternal, rank_text + " cannot go on: " + problem.what()}, rank()},
                     communicator_.now(), actions);
    execute_actions(std::move(actions));
  }
  if (progress_ == Progress::kByThread) changed_.notify_all();
}

Result<uint32_t> PeerGroup::start_core(Collective collective) {
  const std::lock_guard lock(mutex_);
  Actions actions;
  Result<uint32_t> number = core_.start(std::move(collective), communicator_.now(), actions);
  execute_actions(std::move(actions));
  return number;
}

bool PeerGroup::test_core(uint32_t collective) {
  const std::lock_guard lock(mutex_);
  if (progress_ == Progress::kByCaller && !core_.ended(collective)) run_pass();
  return core_.ended(collective);
}

bool PeerGroup::wait_core_for(uint32_t collective, TimeNs at_most) {
  std::unique_lock lock(mutex_);
  if (progress_ == Progress::kByThread) {
    ++waiting_;
    const bool ended =
        changed_.wait_for(lock, std::chrono::nanoseconds(at_most), [&] { return core_.ended(collective); });
    --waiting_;
    return ended;
  }
  const TimeNs begin = communicator_.now();
  for (;;) {
    run_pass();
    if (core_.ended(collective)) return true;
    const TimeNs waited = communicator_.now() - begin;
    if (waited >= at_most) return false;
    wait_for_messages(lock, at_most - waited);
  }
}

Status PeerGroup::wait_core(uint32_t collective) {
  std::unique_lock lock(mutex_);
  if (progress_ == Progress::kByThread) {
    ++waiting_;
    changed_.wait(lock, [&] { return core_.ended(collective); });
    --waiting_;
    return core_.take_status(collective);
  }
  for (;;) {
    run_pass();
    if (core_.ended(collective)) return core_.take_status(collective);
    wait_for_messages(lock, kWaitMax);
  }
}

void PeerGroup::make_progress() {
  if (progress_ == Progress::kByThread) return;
  const std::lock_guard lock(mutex_);
  run_pass();
}

/// Hands the core a message that has arrived. Returns whether there was one.
bool PeerGroup::take_message(Actions& actions) {
  Result<std::optional<ReceivedMessage>> received = communicator_.receive();
  const TimeNs now = communicator_.now();
  if (!received) {
    core_.fail_group({received.error(), communicator_.culprit().value_or(rank())}, now, actions);
    return false;
  }
  if (!*received) return false;
  core_.on_message((*received)->from, std::move((*received)->message), now, actions);
  return true;
}

/// Takes in the received messages, and acts on them.
void PeerGroup::take_in() {
  Actions actions;
  for (int count = 0; count < kMessagesPerPass && take_message(actions); ++count) {
    execute_actions(std::exchange(actions, {}));
  }
  while (const std::optional<uint32_t> heard = communicator_.take_heard()) {
    core_.on_heard(*heard, communicator_.now());
  }
  while (const std::optional<uint32_t> lost = communicator_.take_lost()) {
    core_.on_lost(*lost, communicator_.now(), actions);
  }
  while (const std::optional<uint32_t> left = communicator_.take_left()) core_.on_left(*left);
  if (communicator_.now() >= core_.next_deadline()) core_.on_tick(communicator_.now(), actions);
  execute_actions(std::move(actions));
}

void PeerGroup::wait_for_messages(std::unique_lock<std::mutex>& lock, TimeNs at_most) {
  const TimeNs left = core_.next_deadline() - communicator_.now();
  // While no caller waits for the group's thread, a thread that calls the group computes. A caller whose collective has
  // ended may still be counted as waiting.
  WaitAs as = WaitAs::kIdle;
  if (progress_ == Progress::kByThread) {
    if (!core_.busy()) {
      as = WaitAs::kBetween;
    } else if (waiting_ == 0) {
      as = WaitAs::kBackground;
    }
  }
  lock.unlock();
  communicator_.wait(std::clamp<TimeNs>(left, 0, std::min(at_most, kWaitMax)), as);
  lock.lock();
}

void PeerGroup::execute_actions(Actions&& actions) {
  for (size_t at = 0; at < actions.sends.size(); ++at) {
    Outgoing& out = actions.sends[at];
    const uint32_t to = out.to;
    const Status sent = communicator_.send(to, std::move(out.message));
    if (sent || core_.failure()) continue;
    GroupFailure failure{sent.error(), to};
    if (sent.error().code == ErrorCode::kLimitExceeded) {
      const std::string rank_text = "rank " + std::to_string(rank());
      failure = {{sent.error().code, rank_text + " cannot send " + sent.error().message}, rank()};
    }
    Actions more;
    // A rank that is gone may have said why, in a message that has arrived: that reason comes first.
    while (sent.error().code == ErrorCode::kUnavailable && !core_.failure() && take_message(more)) {
    }
    core_.fail_group(std::move(failure), communicator_.now(), more);
    std::ranges::move(more.sends, std::back_inserter(actions.sends));
  }
}

void PeerGroup::run_thread() {
  take_slices(communicator_.yields() ? kSliceOfYielding : kSlice);
  std::unique_lock lock(mutex_);
  while (!closing_) {
    run_pass();
    wait_for_messages(lock, kWaitMax);
  }
}

std::optional<GroupFailure> PeerGroup::failure() const {
  const std::lock_guard lock(mutex_);
  return core_.failure();
}

Traffic PeerGroup::traffic() const {
  const std::lock_guard lock(mutex_);
  Traffic traffic = communicator_.traffic();
  traffic.messages_unexpected = core_.unexpected_messages();
  return traffic;
}

}  // namespace millrace::peer
