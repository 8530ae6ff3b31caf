#include "server/store/store_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/base/hash.h"
#include "protocol/container/container.h"
#include "server/aggregation/tasks.h"
#include "server/store/save_format.h"

namespace millrace::server {
namespace {

/// Rough costs on one core, memory-bound.
constexpr uint64_t kAppliedEntryNs = 8;
constexpr uint64_t kMovedValuesPerNs = 2;
constexpr uint64_t kGatheredValueNs = 3;
constexpr size_t kGatherAhead = 256;     ///< entries: 16 rows of 16
constexpr size_t kGatherRunsAhead = 16;  ///< runs

using Outcome = Result<SharedBytes>;

Outcome run_on(const StoreTask::Input& input, const StoreTask::Fill& fill) {
  StoreArrays& arrays = *input.arrays;
  arrays.weights.assign(fill.dimension, 0);
  for (size_t at = 0; at < optimizer_states(input.optimizer.optimizer); ++at) {
    arrays.states[at].assign(fill.dimension, 0);
  }
  return SharedBytes{};
}

Outcome run_on(const StoreTask::Input& input, const StoreTask::Place& place) {
  std::vector<float>& weights = input.arrays->weights;
  const ByteSpan bytes = place.values.bytes;
  if (hash64(bytes) != place.payload_hash) return fail(ErrorCode::kMalformed, "a run of weights changed on the way");
  const size_t count = bytes.size() / sizeof(float);
  if (place.offset > weights.size() || count > weights.size() - place.offset) {
    return fail(ErrorCode::kMalformed, "a run of weights goes beyond its part");
  }
  const std::span<float> to(weights.data() + place.offset, count);
  if (!copy_finite(bytes.data(), to)) return fail(ErrorCode::kNonFinite, "NaN or infinity among first weights");
  return SharedBytes{};
}

Outcome run_on(const StoreTask::Input& input, const StoreTask::Apply& apply) {
  StoreArrays& arrays = *input.arrays;
  ContainerLimits limits;
  limits.dimension = arrays.weights.size();
  const Result<SharedStream> sum = read_shared_container(apply.payload, limits);
  if (!sum) return std::unexpected(sum.error());
  OptimizerArrays changed{arrays.weights, {}};
  for (size_t at = 0; at < arrays.states.size(); ++at) changed.states[at] = arrays.states[at];
  const Status done = optimize(input.optimizer, changed, sum->view, apply.denominator, arrays.steps);
  if (!done) return std::unexpected(done.error());
  ++arrays.steps;
  return SharedBytes{};
}

uint32_t index_at(ByteSpan indices, size_t at) {
  uint32_t index = 0;
  std::memcpy(&index, indices.data() + at * sizeof(index), sizeof(index));
  return index;
}

/// Refuses runs of `run` entries that overlap, are not in order, or end behind `dimension`.
Status check_runs(ByteSpan indices, uint32_t run, uint64_t dimension) {
  uint64_t next = 0;
  for (size_t at = 0; at < indices.size() / sizeof(uint32_t); ++at) {
    const uint32_t index = index_at(indices, at);
    if (index < next || uint64_t{index} + run > dimension) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("index {} to pull: indices increase by at least the {} entries that are pulled from each, "
                      "and these lie below the part's {}",
                      index, run, dimension));
    }
    next = uint64_t{index} + run;
  }
  return {};
}

ByteBuffer gather_runs(std::span<const float> weights, ByteSpan indices, uint32_t run) {
  const size_t count = indices.size() / sizeof(uint32_t);
  const size_t run_bytes = run * sizeof(float);
  ByteBuffer values(count * run_bytes);
  for (size_t at = 0; at < count; ++at) {
    if (at + kGatherRunsAhead < count) {
      // A run of 64 bytes lies in two cache lines as a rule. Of a longer one the processor fetches the rest.
      const float* const ahead = &weights[index_at(indices, at + kGatherRunsAhead)];
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + run - 1);
    }
    std::memcpy(values.data() + at * run_bytes, &weights[index_at(indices, at)], run_bytes);
  }
  return values;
}

ByteBuffer gather_entries(std::span<const float> weights, ByteSpan indices) {
  const size_t count = indices.size() / sizeof(uint32_t);
  ByteBuffer values(count * sizeof(float));
  for (size_t at = 0; at < count; ++at) {
    // Rows of a large table are in no cache: their loads overlap.
    if (at + kGatherAhead < count) __builtin_prefetch(&weights[index_at(indices, at + kGatherAhead)]);
    std::memcpy(values.data() + at * sizeof(float), &weights[index_at(indices, at)], sizeof(float));
  }
  return values;
}

Outcome gather(std::span<const float> weights, const StoreTask::Read& read) {
  const ByteSpan indices = read.indices.bytes;
  if (const Status valid = check_runs(indices, read.run, weights.size()); !valid) return std::unexpected(valid.error());
  return SharedBytes::from(read.run == 1 ? gather_entries(weights, indices) : gather_runs(weights, indices, read.run));
}

Outcome run_on(const StoreTask::Input& input, const StoreTask::Read& read) {
  const std::vector<float>& weights = input.arrays->weights;
  if (!read.indices.bytes.empty()) return gather(weights, read);
  ByteBuffer values(read.count * sizeof(float));
  if (read.count != 0) std::memcpy(values.data(), weights.data() + read.offset, values.size());
  return SharedBytes::from(std::move(values));
}

Outcome run_on(const StoreTask::Input& input, const StoreTask::Copy& copy) {
  return SharedBytes::from(
      std::move(encode_store_part(input.part, copy.position, *input.arrays, copy.previous_hash).bytes));
}

}  // namespace

void StoreTask::run() {
  result_ = std::visit([this](const auto& work) { return run_on(input_, work); }, input_.work);
  const bool read = std::holds_alternative<Read>(input_.work);
  if (read && result_ && !result_->bytes.empty()) hash_ = hash64(result_->bytes);
}

uint64_t StoreTask::cost_ns() const {
  const uint64_t dimension = input_.arrays->weights.size();
  const uint64_t arrays = 1 + optimizer_states(input_.optimizer.optimizer);
  struct Cost {
    uint64_t dimension;
    uint64_t arrays;
    uint64_t operator()(const Fill& fill) const { return fill.dimension * arrays / kMovedValuesPerNs; }
    uint64_t operator()(const Place& place) const { return place.values.bytes.size() / sizeof(float); }
    uint64_t operator()(const Apply& apply) const {
      const DecodeCost cost = decode_cost_of(apply.payload);
      return cost.ns + cost.entries * kAppliedEntryNs;
    }
    uint64_t operator()(const Read& read) const {
      const uint64_t gathered = read.indices.bytes.size() / sizeof(uint32_t);
      return (read.count + gathered * (read.run - 1)) / kMovedValuesPerNs + gathered * kGatheredValueNs;
    }
    uint64_t operator()(const Copy&) const { return 2 * dimension * arrays / kMovedValuesPerNs; }
  };
  return std::visit(Cost{dimension, arrays}, input_.work);
}

}  // namespace millrace::server
