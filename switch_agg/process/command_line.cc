#include "switch_agg/process/command_line.h"

#include <fmt/format.h>

#include "kernels/base/version.h"
#include "protocol/datagram/key.h"
#include "switch_agg/packet_io/dpdk/open_dpdk.h"

namespace millrace::switch_agg {

std::string version_text(std::string_view program) {
  const std::string_view dpdk = dpdk_version();
  return fmt::format("{} {} {}, MACs by {}", program, project_version(),
                     dpdk.empty() ? "without DPDK" : fmt::format("with DPDK {}", dpdk),
                     protocol::datagram_mac_library());
}

}  // namespace millrace::switch_agg
