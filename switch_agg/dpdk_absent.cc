// In place of the other dpdk_*.cc where DPDK was not found.
#include "switch_agg/dpdk_ports.h"

namespace millrace::switch_agg {
namespace {

std::unexpected<Error> absent() {
  return fail(
      ErrorCode::kUnsupported,
      "this millrace-switch was built without DPDK: install libdpdk-dev (deploy/setup.sh) and build again, or use "
      "--pmd kernel");
}

}  // namespace

std::string_view dpdk_version() { return {}; }

Result<std::vector<std::unique_ptr<PacketPort>>> open_dpdk_ports(const DpdkOptions&) { return absent(); }

Result<std::unique_ptr<DpdkRingWire>> DpdkRingWire::open(const DpdkOptions&) { return absent(); }

}  // namespace millrace::switch_agg
