#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "millrace/peer.h"
#include "worker/peer/group/group_gather.h"
#include "worker/peer/group/peer_group.h"
#include "worker/peer/library/group_impl.h"
#include "worker/peer/library/raise.h"

namespace millrace::inline v0::peers {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGroupTimeMin{4};

uint32_t milliseconds_of(milliseconds time, const char* name) {
  if (time < kGroupTimeMin) {
    refuse(JobErrorCode::kInvalidArgument, std::string("GroupOptions::") + name + " of " +
                                               std::to_string(time.count()) + " ms: it is at least " +
                                               std::to_string(kGroupTimeMin.count()) + " ms");
  }
  return static_cast<uint32_t>(std::min<int64_t>(time.count(), std::numeric_limits<uint32_t>::max()));
}

peer::GroupOptions inner_options_of(const GroupOptions& options) {
  peer::GroupOptions inner;
  inner.silence_ms_max = milliseconds_of(options.silence_max, "silence_max");
  inner.start_ms_max = milliseconds_of(options.start_max, "start_max");
  inner.early_bytes_max = options.early_bytes_max;
  return inner;
}

template <auto kOurs, auto kInner>
constexpr bool is_same_number() {
  return static_cast<uint64_t>(kOurs) == static_cast<uint64_t>(kInner);
}
static_assert(is_same_number<Progress::kByCaller, peer::Progress::kByCaller>());
static_assert(is_same_number<Progress::kByThread, peer::Progress::kByThread>());
static_assert(is_same_number<JobErrorCode::kInvalidArgument, ErrorCode::kInvalidArgument>());
static_assert(is_same_number<JobErrorCode::kTimeout, ErrorCode::kTimeout>());
static_assert(is_same_number<JobErrorCode::kInternal, ErrorCode::kInternal>());

}  // namespace

Group::Group(Communicator communicator, const GroupOptions& options) {
  if (!communicator.impl_) {
    refuse(JobErrorCode::kInvalidArgument, "another group has this communicator: make one for each group");
  }
  impl_ = std::make_shared<Impl>(std::move(communicator.impl_), inner_options_of(options),
                                 static_cast<peer::Progress>(options.progress));
}

Group::~Group() = default;

uint32_t Group::rank() const { return impl_->inner.rank(); }
uint32_t Group::size() const { return impl_->inner.size(); }

void Group::barrier() {
  // The group's own limits end a wait long before this one.
  while (!try_barrier(std::chrono::milliseconds::max())) {
  }
}

bool Group::try_barrier(std::chrono::milliseconds timeout) {
  std::optional<peer::EnteredBarrier> entered = impl_->take_barrier();
  if (!entered) entered = take(peer::enter_barrier(impl_->inner), JobErrorOrigin::kJob);
  if (!entered->wait_for(limit_of(timeout))) {
    impl_->keep_barrier(std::move(*entered));
    return false;
  }
  take(entered->wait(), JobErrorOrigin::kJob);
  return true;
}

void Group::make_progress() { impl_->inner.make_progress(); }

std::optional<GroupFailure> Group::failure() const {
  const std::optional<peer::GroupFailure> failure = impl_->inner.failure();
  if (!failure) return std::nullopt;
  return GroupFailure{static_cast<JobErrorCode>(failure->error.code), failure->error.message, failure->rank};
}

Traffic Group::traffic() const {
  const peer::Traffic traffic = impl_->inner.traffic();
  return {traffic.messages_sent, traffic.bytes_sent, traffic.bytes_received, traffic.messages_unexpected};
}

}  // namespace millrace::inline v0::peers
