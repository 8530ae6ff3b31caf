#include "protocol/address/tcp_address.h"

#include <algorithm>
#include <utility>

namespace millrace::protocol {

std::optional<HostPort> split_tcp_address(std::string_view text) {
  constexpr std::string_view kScheme = "tcp://";
  if (!text.starts_with(kScheme)) return std::nullopt;
  return split_host_port(text.substr(kScheme.size()));
}

std::string tcp_address(std::string_view host, uint16_t port) {
  return "tcp://" + host_port_text({std::string(host), port});
}

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
