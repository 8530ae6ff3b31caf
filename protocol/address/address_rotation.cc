#include "protocol/address/address_rotation.h"

#include <algorithm>
#include <utility>

namespace millrace::protocol {

void AddressRotation::take(std::vector<std::string> addresses) {
  addresses_ = std::move(addresses);
  next_ = 0;
  const auto worked = std::ranges::find(addresses_, worked_);
  if (worked != addresses_.end()) std::rotate(addresses_.begin(), worked, worked + 1);
}

std::optional<std::string> AddressRotation::next() {
  if (next_ == addresses_.size()) return std::nullopt;
  last_ = addresses_[next_++];
  return last_;
}

}  // namespace millrace::protocol
