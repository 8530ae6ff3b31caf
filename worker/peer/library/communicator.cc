#include <memory>
#include <utility>
#include <vector>

#include "millrace/peer.h"
#include "worker/peer/library/communicator_impl.h"
#include "worker/peer/library/raise.h"
#include "worker/peer/transport/thread_network.h"

namespace millrace::peers {

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

uint32_t Communicator::rank() const { return held(impl_).transport->rank(); }
uint32_t Communicator::size() const { return held(impl_).transport->size(); }

}  // namespace millrace::peers
