// In place of the other dpdk_*.cc where DPDK was not found, or is not wanted.
#include <fmt/format.h>

#include "switch_agg/packet_io/dpdk/open_dpdk.h"

namespace millrace::switch_agg {
namespace {

std::unexpected<Error> absent(std::string_view otherwise) {
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("this millrace-switch was built without DPDK: install libdpdk-dev (deploy/setup.sh) and build "
                  "again, or use {}",
                  otherwise));
}

}  // namespace

std::string_view dpdk_version() { return {}; }

Result<std::vector<std::unique_ptr<PacketPort>>> open_dpdk_ports(const DpdkOptions&) { return absent("--pmd kernel"); }

Result<std::unique_ptr<DpdkRingWire>> DpdkRingWire::open(const DpdkOptions&, uint32_t) {
  return absent("--pmd memory");
}

}  // namespace millrace::switch_agg
