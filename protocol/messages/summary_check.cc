#include "protocol/messages/summary_check.h"

namespace millrace::protocol {
namespace {

std::string_view disorder_in(const SummaryEntry& entry) {
  const bool counts = entry.sequence != 0;  // mode asynchronous: of contributions, not steps
  for (size_t at = 0; at < entry.earlier_incarnations.size(); ++at) {
    const auto& [incarnation, last_step] = entry.earlier_incarnations[at];
    if (incarnation >= entry.incarnation || (!counts && last_step >= entry.last_step))
      return "an earlier incarnation in a summary is not earlier";
    if (at == 0) continue;
    const auto& [incarnation_before, step_before] = entry.earlier_incarnations[at - 1];
    if (incarnation_before >= incarnation || (!counts && step_before >= last_step))
      return "a summary's incarnations are not in ascending order";
  }
  return {};
}

}  // namespace

std::string_view disorder_in(const Summary& summary) {
  for (size_t at = 0; at < summary.workers.size(); ++at) {
    if (const std::string_view why = disorder_in(summary.workers[at]); !why.empty()) return why;
    if (at > 0 && summary.workers[at - 1].worker >= summary.workers[at].worker)
      return "a summary is not in ascending order";
  }
  for (size_t at = 1; at < summary.epochs.size(); ++at) {
    const auto& [epoch, first_step] = summary.epochs[at];
    const auto& [epoch_before, step_before] = summary.epochs[at - 1];
    if (epoch_before >= epoch || step_before > first_step) return "a summary's epochs are not in ascending order";
  }
  return {};
}

}  // namespace millrace::protocol
