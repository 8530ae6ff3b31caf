#include "worker/peer/algorithms/summing_speeds.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "kernels/reduce/reduce.h"
#include "worker/peer/channel/stream_wire.h"

namespace millrace::peer {
namespace {

constexpr int kRounds = 5;
constexpr int kSelectionRounds = 3;
constexpr size_t kCodedEntriesMax = size_t{1} << 16;
constexpr uint64_t kSelectedFromMax = uint64_t{1} << 21;
constexpr uint32_t kEntries = 1U << 15;  ///< of each sparse stream
constexpr uint64_t kValues = 1U << 19;   ///< of each dense one: with its sum more than a second-level cache has

/// For each entry of `streams`.
double seconds_an_entry(std::span<const StreamView> streams, const std::function<TimeNs()>& clock) {
  uint64_t entries = 0;
  for (const StreamView& stream : streams) entries += stream.count();
  TimeNs best = std::numeric_limits<TimeNs>::max();
  for (int round = 0; round < kRounds; ++round) {
    const TimeNs begin = clock();
    const auto sum = sum_many(streams);
    best = std::min(best, clock() - begin);
    MILLRACE_CHECK(sum.has_value(), entries);
    if (best <= 0) return 0;
  }
  return static_cast<double>(best) / static_cast<double>(kNsPerS) / static_cast<double>(entries);
}

}  // namespace

Result<EntryCoding> measure_coding(const std::optional<CodecSpec>& codec, const StreamView& stream,
                                   const std::function<TimeNs()>& clock) {
  EntryCoding coding;
  if (!codec || stream.dense || stream.indices.empty()) return coding;
  const size_t count = std::min<size_t>(stream.indices.size(), kCodedEntriesMax);
  // Of the whole stream's density: up to the last index that is looked at.
  const uint64_t dimension =
      count == stream.indices.size() ? stream.dimension : uint64_t{stream.indices[count - 1]} + 1;
  SharedStream sample;
  sample.view = {dimension, false, stream.indices.first(count), stream.values.first(count)};
  TimeNs encode = std::numeric_limits<TimeNs>::max(), decode = encode;
  for (int round = 0; round < kRounds; ++round) {
    const TimeNs begin = clock();
    const Result<Packed> packed = pack(sample, codec, RandomKey::from(1));
    const TimeNs encoded = clock();
    if (!packed) return std::unexpected(packed.error());
    const Result<SharedStream> read = unpack(packed->packet, dimension);
    const TimeNs decoded = clock();
    if (!read) return std::unexpected(read.error());
    encode = std::min(encode, encoded - begin);
    decode = std::min(decode, decoded - encoded);
    coding.bytes = static_cast<double>(packed->packet.body.bytes.size()) / static_cast<double>(count);
    if (decoded == begin) break;
  }
  coding.encode_s = static_cast<double>(encode) / static_cast<double>(kNsPerS) / static_cast<double>(count);
  coding.decode_s = static_cast<double>(decode) / static_cast<double>(kNsPerS) / static_cast<double>(count);
  return coding;
}

Result<SelectionSpeed> measure_selection(SelectionSpec spec, uint64_t dimension, const std::function<TimeNs()>& clock) {
  if (spec.selection == SelectionId::kNone) return SelectionSpeed{};
  const uint64_t values = std::min(dimension, kSelectedFromMax);
  if (spec.k > 0) {
    const double share = static_cast<double>(k_of(spec, dimension)) / static_cast<double>(dimension);
    spec.k = std::max<uint64_t>(1, static_cast<uint64_t>(share * static_cast<double>(values)));
  }
  Stream gradient{values, true, {}, {}};
  gradient.values.resize(values);
  RandomSequence random(RandomKey::from(1));
  for (float& value : gradient.values) value = static_cast<float>(random.next_normal());
  // Selectors of their own for first steps: a kept threshold would be found.
  TimeNs first = std::numeric_limits<TimeNs>::max(), reuse = first;
  const SelectionInfo* info = find_selection(spec.selection);
  const bool reuses = info != nullptr && info->reuses_threshold;
  IndexBuffer positions;
  for (int round = 0; round < kSelectionRounds; ++round) {
    auto selector = make_selector(spec, values);
    if (!selector) return std::unexpected(selector.error());
    for (uint64_t step = 0; step < 3; ++step) {
      const TimeNs begin = clock();
      const Status status =
          (*selector)->select(std::as_const(gradient).view(), {.step = step, .random = {}}, positions);
      const TimeNs took = clock() - begin;
      if (!status) return std::unexpected(status.error());
      TimeNs& best = reuses && step > 0 ? reuse : first;
      best = std::min(best, took);
    }
  }
  if (!reuses) reuse = first;
  const double each = static_cast<double>(kNsPerS) * static_cast<double>(values);
  return SelectionSpeed{static_cast<double>(first) / each, static_cast<double>(reuse) / each};
}

KernelSpeeds measure_kernel_speeds(const std::function<TimeNs()>& clock) {
  // Far enough apart that the sum stays sparse.
  constexpr uint32_t kApart = 8;
  Stream even = Stream::empty(uint64_t{2} * kApart * kEntries), odd = even;
  for (uint32_t i = 0; i < kEntries; ++i) {
    even.indices.push_back(2 * kApart * i);
    odd.indices.push_back(2 * kApart * i + kApart);
  }
  even.values.assign(kEntries, 1.0F);
  odd.values.assign(kEntries, 1.0F);
  const std::array sparse{std::as_const(even).view(), std::as_const(odd).view()};
  KernelSpeeds speeds{.add_entry_s = seconds_an_entry(sparse, clock)};
  if (speeds.add_entry_s == 0) return speeds;
  Stream dense{kValues, true, {}, {}};
  dense.values.assign(kValues, 1.0F);
  const Stream other = dense;  // not the same memory twice: that would come from a cache
  const std::array both{std::as_const(dense).view(), other.view()};
  speeds.add_value_s = seconds_an_entry(both, clock);
  return speeds;
}

}  // namespace millrace::peer
