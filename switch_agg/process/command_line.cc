#include "switch_agg/process/command_line.h"

#include <fmt/format.h>

#include "kernels/base/version.h"
#include "monitoring/exit_code.h"
#include "monitoring/standard_streams.h"
#include "protocol/datagram/key.h"
#include "switch_agg/packet_io/dpdk/open_dpdk.h"

namespace millrace::switch_agg {

int report_usage(std::string_view program, std::string_view sentence) {
  constexpr int kUsage = 2;
  say(program, fmt::format("{}; see {} --help", sentence, program));
  return kUsage;
}

std::string version_text(std::string_view program) {
  const std::string_view dpdk = dpdk_version();
  return fmt::format("{} {} {}, MACs by {}", program, project_version(),
                     dpdk.empty() ? "without DPDK" : fmt::format("with DPDK {}", dpdk),
                     protocol::datagram_mac_library());
}

void say(std::string_view program, std::string_view sentence) {
  monitoring::say(fmt::format("{}: {}", program, sentence));
}

void flush(std::string_view program) {
  if (const Status written = monitoring::flush_output(); !written) say(program, written.error().message);
}

int exit_code_of(ErrorCode code) {
  return static_cast<int>(monitoring::exit_code_of(code, monitoring::ErrorPlace::kSwitch));
}

}  // namespace millrace::switch_agg
