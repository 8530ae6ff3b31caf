#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/peer.h"
#include "worker/peer/library/communicator_impl.h"
#include "worker/peer/library/raise.h"
#include "worker/peer/transport/tcp_communicator.h"
#include "worker/peer/transport/thread_network.h"

namespace millrace::peers {
namespace {

TimeNs nanoseconds_of(std::chrono::milliseconds time) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return std::chrono::nanoseconds(std::clamp(time, std::chrono::milliseconds(0), kLongest)).count();
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&& other) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept = default;
Communicator::~Communicator() = default;

std::vector<Communicator> Communicator::in_process(uint32_t size) {
  if (size == 0) refuse(JobErrorCode::kInvalidArgument, "a group of 0 ranks: it has at least 1");
  const auto network = std::make_shared<peer::ThreadNetwork>(size);
  std::vector<Communicator> all;
  all.reserve(size);
  for (uint32_t rank = 0; rank < size; ++rank) {
    auto impl = std::make_unique<Impl>();
    impl->transport = std::shared_ptr<peer::Communicator>(network, &network->communicator(rank));
    all.push_back(Communicator(std::move(impl)));
  }
  return all;
}

Communicator Communicator::over_tcp(const TcpOptions& options) {
  if (!options.addresses.empty() && options.exchange) {
    refuse(JobErrorCode::kInvalidArgument, "TcpOptions has addresses and exchange: give one of both");
  }
  if (!options.exchange && options.rank >= options.addresses.size()) {
    refuse(JobErrorCode::kInvalidArgument, "rank " + std::to_string(options.rank) + " of " +
                                               std::to_string(options.addresses.size()) +
                                               " addresses: each rank has one");
  }
  if (options.exchange && options.listen.empty()) {
    refuse(JobErrorCode::kInvalidArgument, "TcpOptions::exchange needs TcpOptions::listen, as 10.0.0.1:0");
  }
  const std::string& listen = options.listen.empty() ? options.addresses[options.rank] : options.listen;
  auto listener = take(peer::TcpListener::open(listen), JobErrorOrigin::kWorker);
  peer::TcpMeeting meeting;
  meeting.rank = options.rank;
  meeting.addresses = options.exchange ? options.exchange(listener.address()) : options.addresses;
  meeting.group = options.group;
  meeting.time_max = nanoseconds_of(options.connect_max);
  meeting.give_up = options.give_up;
  auto impl = std::make_unique<Impl>();
  impl->transport =
      take(peer::TcpCommunicator::connect(std::move(listener), meeting, options.body_bytes_max), JobErrorOrigin::kJob);
  return Communicator(std::move(impl));
}

uint32_t Communicator::rank() const { return held(impl_).transport->rank(); }
uint32_t Communicator::size() const { return held(impl_).transport->size(); }

}  // namespace millrace::peers
