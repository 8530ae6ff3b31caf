#include "protocol/address/host_lookups.h"

#include <utility>

#include "protocol/address/host_port.h"

namespace millrace::protocol {

std::optional<HostLookups::Found> HostLookups::find(const std::string& host, TimeNs now) {
  if (is_numeric_host(host)) return resolver_(host);
  Entry& entry = hosts_[host];
  if (entry.running) {
    std::optional<Found> answer = entry.running->take();
    if (!answer) return std::nullopt;
    entry = {.answer = std::move(answer), .at = now};
    --running_;
  }
  if (entry.answer && now - entry.at < kFreshFor) return entry.answer;
  if (running_ == kRunningMax) return std::nullopt;
  auto started = HostLookup::start(resolver_, host);
  if (!started) return Found(std::unexpected(started.error()));
  entry.running = std::move(*started);
  ++running_;
  return std::nullopt;
}

void HostLookups::poll_for(std::vector<pollfd>& polled) const {
  for (const auto& [host, entry] : hosts_) {
    if (entry.running) polled.push_back({entry.running->descriptor(), POLLIN, 0});
  }
}

}  // namespace millrace::protocol
