#include "switch_agg/switch_status.h"

namespace millrace::switch_agg {

std::vector<ReasonCount> port_drops(const PortCounters& port) {
  return {{"too_long", port.too_long},
          {"malformed_frame", port.malformed_frame},
          {"other_protocol", port.other_protocol},
          {"other_destination", port.other_destination},
          {"lane_full", port.lane_full},
          {"no_buffer", port.no_buffer},
          {"send_full", port.send_full},
          {"send_refused", port.send_refused},
          {"no_neighbour", port.no_neighbour}};
}

uint64_t retransmissions(const AggregatorCounters& counters) {
  return counters[AggregatorEvent::kDuplicate] + counters[AggregatorEvent::kPrevious] +
         counters[AggregatorEvent::kCurrentClosed];
}

}  // namespace millrace::switch_agg
