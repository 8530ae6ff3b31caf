#pragma once

#include <array>
#include <string>
#include <string_view>

#include "kernels/optimize/optimize.h"
#include "protocol/job/job_spec.h"
#include "server/store/job_store.h"
#include "tests/fuzz/byte_source.h"

/// Kinds of jobs for the fuzzer of a shard's core.
namespace millrace::testing {

inline void draw_store(ByteSource& source, protocol::JobSpec& spec, server::JobStore::Saves& saves) {
  static constexpr std::array<std::string_view, 4> kOptimizers = {"sgd:1", "momentum:0.5:0.5", "adagrad:0.5",
                                                                  "adam:0.125"};
  spec.store.optimizer = *optimizer_from_text(kOptimizers[source.below(4)]);
  saves.possible = !source.one_in(4);
  if (saves.possible && source.one_in(2)) saves.every = 200 * kNsPerMs;
  // A job that is to begin with saves that there are not is refused.
  spec.store.begin = static_cast<protocol::StoreBegin>(1 + source.below(saves.possible ? 3 : 2));
}

/// Makes it a job of path switch. Returns the address where the shard takes over from the switch, or empty.
inline std::string draw_switch(ByteSource& source, protocol::JobSpec& spec) {
  spec.path = protocol::Path::kSwitch;
  spec.switch_path.address = "192.0.2.7:7700";
  spec.mode = protocol::Mode::kSynchronous;
  spec.staleness = spec.apply_after_acks = 0;
  spec.store = {};
  return source.one_in(3) ? "" : "192.0.2.1:7800";
}

}  // namespace millrace::testing
