#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "millrace/peer.h"
#include "protocol/address/host_port.h"
#include "protocol/keys/key_files.h"
#include "protocol/keys/noise.h"
#include "worker/peer/library/communicator_impl.h"
#include "worker/peer/library/raise.h"
#include "worker/peer/transport/tcp_communicator.h"
#include "worker/peer/transport/thread_network.h"

namespace millrace::inline v0::peers {
namespace {

TimeNs nanoseconds_of(std::chrono::milliseconds time) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return std::chrono::nanoseconds(std::clamp(time, std::chrono::milliseconds(0), kLongest)).count();
}

/// Throws  invalid_argument: the group has no key, and other machines reach the address. what  names it.
void check_reach(const TcpOptions& options, const std::string& what, const std::string& address) {
  if (!options.key_file.empty() || options.insecure) return;
  const auto parsed = protocol::parse_host_port(protocol::without_tcp(address), protocol::PortZero::kAllowed);
  if (!parsed || protocol::is_loopback_host(parsed->host)) return;
  refuse(JobErrorCode::kInvalidArgument,
         what + " " + address +
             ": other machines may reach this address; give all ranks the same key_file (millrace keys new), use "
             "addresses of loopback where all ranks are on one machine, or say insecure: every process that reaches "
             "the port may then take a rank's place and read every sum");
}

std::optional<protocol::SecretKey> key_of(const TcpOptions& options) {
  if (options.key_file.empty()) return std::nullopt;
  if (options.insecure) refuse(JobErrorCode::kInvalidArgument, "insecure: this group has a key; leave one of them out");
  const auto pair = protocol::read_secret_key(options.key_file);
  if (!pair) raise({pair.error().code, "key_file: " + pair.error().message}, JobErrorOrigin::kWorker);
  return protocol::shared_secret_of(*pair, "millrace peers");
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
    impl->transport = std::shared_ptr<peer::Communicator>(
        &network->communicator(rank), [network](const peer::Communicator* one) { network->leave(one->rank()); });
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
  check_reach(options, options.listen.empty() ? "addresses:" : "listen", listen);
  peer::TcpMeeting meeting;
  meeting.began = monotonic_now_ns();
  meeting.key = key_of(options);
  auto listener = take(peer::TcpListener::open(listen), JobErrorOrigin::kWorker);
  meeting.rank = options.rank;
  meeting.addresses = options.exchange ? options.exchange(listener.address()) : options.addresses;
  for (const std::string& address : meeting.addresses) check_reach(options, "addresses:", address);
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

}  // namespace millrace::inline v0::peers
