#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "millrace/peer.h"
#include "worker/peer/collectives/allgather.h"
#include "worker/peer/group/peer_group.h"
#include "worker/peer/library/group_impl.h"
#include "worker/peer/library/raise.h"

namespace millrace::inline v0::peers {
namespace {

using Packets = std::vector<peer::Packet>;

constexpr uint64_t kGatherBytesMax = (uint64_t{1} << 31) - 1;  ///< of a message's body
constexpr uint32_t kGatherTag = 1;

peer::Packet packet_of_bytes(std::span<const std::byte> own) {
  ByteBuffer bytes(own.size());
  if (!own.empty()) std::memcpy(bytes.data(), own.data(), own.size());
  return {peer::BodyForm::kNumbers, SharedBytes::from(std::move(bytes))};
}

Gathered public_gathered_of(Packets&& packets) {
  const auto kept = std::make_shared<const Packets>(std::move(packets));
  Gathered all{.owner = kept};
  for (const peer::Packet& packet : *kept) all.of_rank.push_back(std::as_bytes(packet.body.bytes));
  return all;
}

}  // namespace

struct PendingGather::Impl {
  std::shared_ptr<Group::Impl> group;
  peer::Pending<Packets> pending;
  bool taken = false;
  std::optional<Error> failure = {};  ///< later calls have it too
};

PendingGather Group::start_gather(std::span<const std::byte> own) {
  const uint64_t bytes_max = std::min(kGatherBytesMax, impl_->inner.body_bytes_max());
  if (own.size() > bytes_max) {
    refuse(JobErrorCode::kLimitExceeded, "a gather of " + std::to_string(own.size()) + " bytes of a rank: at most " +
                                             std::to_string(bytes_max) + " travel in a message");
  }
  auto body = [packet = packet_of_bytes(own)](peer::Channel& channel) {
    return peer::allgather(channel, packet, kGatherTag, peer::AllgatherWay::kDoubling);
  };
  auto pending = take(impl_->inner.start<Packets>("gather of bytes", std::move(body)), JobErrorOrigin::kJob);
  return PendingGather(std::make_unique<PendingGather::Impl>(PendingGather::Impl{impl_, std::move(pending)}));
}

PendingGather::PendingGather(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PendingGather::PendingGather(PendingGather&& other) noexcept = default;
PendingGather& PendingGather::operator=(PendingGather&& other) noexcept = default;
PendingGather::~PendingGather() = default;

bool PendingGather::ready() { return held(impl_).taken || held(impl_).pending.test(); }

Gathered PendingGather::wait() {
  Impl& impl = held(impl_);
  if (!impl.failure) {
    if (impl.taken) refuse(JobErrorCode::kInvalidArgument, "this result was handed out before");
    Result<Packets> packets = impl.pending.wait();
    impl.taken = true;
    if (packets) return public_gathered_of(std::move(*packets));
    impl.failure = std::move(packets.error());
  }
  return public_gathered_of(take(Result<Packets>(std::unexpected(*impl.failure)), JobErrorOrigin::kJob));
}

std::optional<Gathered> PendingGather::try_wait(std::chrono::milliseconds timeout) {
  if (!held(impl_).taken && !held(impl_).pending.wait_for(limit_of(timeout))) return std::nullopt;
  return wait();
}

}  // namespace millrace::inline v0::peers
