#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "protocol/job/switch_layout.h"
#include "server/process/aggregator_thread.h"
#include "switch_agg/aggregator/aggregator.h"
#include "switch_agg/aggregator/split_by_lanes.h"
#include "tests/support/replaced_new.h"

/// The memory that shard 0 reckons with for a job of path switch, against what its slot machine takes.
namespace millrace::server {
namespace {

constexpr uint32_t kWindow = 65'536;
constexpr uint32_t kWorkers = 4;

protocol::JobSpec memory_spec(uint32_t lanes, uint32_t packet_bytes) {
  protocol::JobSpec spec;
  spec.name = "memory";
  spec.workers = kWorkers;
  spec.tensors.push_back({.name = "w", .dimension = 32 * kWindow});
  spec.path = protocol::Path::kSwitch;
  spec.switch_path.job = 7;
  spec.switch_path.slots = 16;
  spec.switch_path.lanes = lanes;
  spec.switch_path.packet_bytes_max = packet_bytes;
  spec.grid.block_indices = kWindow;
  return spec;
}

/// Returns the bytes that a slot machine allocates for the job.
size_t taken_by(const protocol::JobSpec& spec, const protocol::SwitchLayout& layout,
                const std::vector<uint64_t>& racks) {
  switch_agg::SwitchJob job;
  job.job = spec.switch_path.job;
  job.workers = spec.workers;
  job.window_indices = layout.window_indices;
  job.slots = layout.slots;
  job.lanes = layout.lanes;
  job.packet_bytes = spec.switch_path.packet_bytes_max;
  job.racks = racks;
  const size_t before = millrace::testing::allocated_bytes();
  switch_agg::Aggregator aggregator({.jobs_max = layout.lanes,
                                     .slots_max = layout.slots,
                                     .window_indices_max = layout.window_indices,
                                     .packet_bytes_max = spec.switch_path.packet_bytes_max},
                                    1);
  for (const switch_agg::SwitchJob& lane : switch_agg::split_by_lanes(job))
    EXPECT_TRUE(aggregator.add_job(lane, kNsPerS).has_value());
  return millrace::testing::allocated_bytes() - before;
}

TEST(AggregatorMemory, TheReckonedBytesAreThoseOfTheSlotMachine) {
  for (const uint32_t lanes : {1U, 4U}) {
    for (const uint32_t packet_bytes : {1472U, 8972U}) {
      for (const std::vector<uint64_t>& racks : {std::vector<uint64_t>{}, std::vector<uint64_t>{1, 2, 12}}) {
        const protocol::JobSpec spec = memory_spec(lanes, packet_bytes);
        const protocol::SwitchLayout layout = protocol::plan_switch_layout(spec, protocol::plan_layout(spec, 1));
        const auto taken = static_cast<double>(taken_by(spec, layout, racks));
        const auto reckoned = static_cast<double>(aggregator_bytes(spec, layout, racks.size()));
        EXPECT_NEAR(reckoned, taken, 0.06 * taken)
            << lanes << " lanes, " << packet_bytes << " bytes, " << racks.size() << " racks";
      }
    }
  }
}

}  // namespace
}  // namespace millrace::server
