#include "server/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "kernels/reduce/reduce.h"
#include "protocol/container.h"
#include "protocol/history_payload.h"

namespace millrace::server {
namespace {

/// Rough costs on one core, of four workers with 1 % each (`millrace bench reduce`, `bench serve`).
constexpr uint64_t kDecodedBytesPerNs = 4;
constexpr uint64_t kRestoredByteNs = 10;  ///< by the history: 50 ns an index of raw values
constexpr uint64_t kQuickEntryNs = 4;
constexpr uint64_t kWholeEntryNs = 9;
constexpr uint64_t kCutEntryNs = 2;

template <typename T>
Result<SharedStream> decode_stream(const DecodeTask::Input& input) {
  ContainerLimits limits;
  limits.dimension = input.dimension;
  limits.count_max = input.dimension;
  limits.bytes_max = input.payload.bytes.size();
  Result<HeldStream<T>> stream = hold_container<T>(input.payload, limits);
  if (!stream) return std::unexpected(stream.error());
  return SharedStream(std::move(*stream));
}

/// The entries of `sum` that the cut lets through, sparse.
template <typename T>
Stream<T> selected_of(const StreamView<T>& sum, const PartCut& cut) {
  IndexBuffer positions;
  select_by_cut<T>(sum.values, cut.bin, cut.take, positions);
  Stream<T> selected = Stream<T>::empty(sum.dimension);
  selected.values.resize(positions.size());
  for (size_t at = 0; at < positions.size(); ++at) selected.values[at] = sum.values[positions[at]];
  if (sum.dense) {
    selected.indices = std::move(positions);
    return selected;
  }
  selected.indices.resize(positions.size());
  for (size_t at = 0; at < positions.size(); ++at) selected.indices[at] = sum.indices[positions[at]];
  return selected;
}

/// The value of each entry of `carried` in `stream` (absent: 0), handed to `visit` in order; both ascend.
template <typename T, typename Visit>
void for_each_carried(const StreamView<T>& carried, const StreamView<T>& stream, Visit visit) {
  size_t at = 0;
  for (size_t entry = 0; entry < carried.count(); ++entry) {
    const uint32_t index = carried.dense ? static_cast<uint32_t>(entry) : carried.indices[entry];
    if (stream.dense) {
      visit(entry, stream.values[index]);
      continue;
    }
    while (at < stream.indices.size() && stream.indices[at] < index) ++at;
    visit(entry, at < stream.indices.size() && stream.indices[at] == index ? stream.values[at] : T{0});
  }
}

/// Sum of |a - b|, in f64 and in an order that fits vectors.
template <typename T>
double distance(std::span<const T> a, std::span<const T> b) {
  constexpr size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  const auto between = [&](size_t i) { return std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])); };
  size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += between(i + lane);
  }
  for (; i < a.size(); ++i) sums[0] += between(i);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// What the code changed: of the selected values, and of those in `sum` that the index codec added.
template <typename T>
double codec_error(const StreamView<T>& selected, const StreamView<T>& carried, const StreamView<T>& sum) {
  if (carried.values.size() == selected.values.size()) return distance(selected.values, carried.values);
  double error = 0;
  for_each_carried<T>(carried, sum, [&](size_t entry, T value) {
    error += std::fabs(static_cast<double>(value) - static_cast<double>(carried.values[entry]));
  });
  return error;
}

template <typename T>
std::vector<StreamView<T>> views_of(const std::vector<SharedStream>& contributions) {
  std::vector<StreamView<T>> views;
  views.reserve(contributions.size());
  for (const SharedStream& one : contributions) views.push_back(one.view<T>());
  return views;
}

/// What of each contribution the update carries, and whether that is what the sum has there.
template <typename T>
void audit(const StreamView<T>& selected, const StreamView<T>& carried, const StreamView<T>& sum,
           const EncodePlan& plan, EncodedUpdate& update) {
  const std::vector<StreamView<T>> contributions = views_of<T>(plan.audited);
  UpdateAudit found;
  if (plan.extent == Extent::kEverything) {
    found = audit_update<T>(sum, sum.values, contributions, Extent::kEverything);
  } else if (carried.count() == selected.count()) {
    found = audit_update<T>(carried, selected.values, contributions, Extent::kItsIndices);
  } else {
    std::vector<T> sums(carried.count());
    for_each_carried<T>(carried, sum, [&](size_t entry, T value) { sums[entry] = value; });
    found = audit_update<T>(carried, sums, contributions, Extent::kItsIndices);
  }
  update.carried = std::move(found.carried);
  update.imbalance = found.imbalance;
}

template <typename T>
Result<EncodedUpdate> encode_with(const StreamView<T>& selected, const StreamView<T>& sum, const CodecSpec& codec,
                                  const EncodePlan& plan) {
  const EncodeOptions options{codec, plan.random, plan.index_base};
  Result<EncodedContainer<T>> coded = encode_container<T>(selected, sum, options);
  if (!coded) return std::unexpected(coded.error());
  EncodedUpdate update;
  update.entries = coded->count;
  const StreamView<T> carried = coded->exact ? selected : coded->decoded.view();
  if (!coded->exact) update.codec_error = codec_error(selected, carried, sum);
  if (!plan.audited.empty()) audit<T>(selected, carried, sum, plan, update);
  if (plan.for_history) {
    const IndexSpan changed = changed_indices(carried, update.changed);
    if (update.changed.empty()) update.changed.assign(changed.begin(), changed.end());
  }
  update.container = SharedBytes::from(std::move(coded->bytes));
  return update;
}

/// Codec auto. An update of everything may go in either form; of one that was cut, what it carries is what is in it.
template <typename T>
Result<EncodedUpdate> encode_chosen(const StreamView<T>& selected, const StreamView<T>& sum, const EncodePlan& plan) {
  CodecChooser chooser = plan.automatic->chooser;
  ChoiceInput input;
  input.spec = plan.codec;
  input.speeds = &plan.automatic->costs.speeds();
  input.link_bits_per_s = LinkRate(plan.automatic->costs.link_bits_per_s).bits_per_s();
  input.copies = plan.automatic->receivers;
  const bool whole = plan.extent == Extent::kEverything && !plan.cut && !plan.largest && !plan.by_step;
  input.form = whole ? CodedForm::kEither : CodedForm::kAsItIs;
  chooser.choose(selected, input);
  const std::optional<Stream<T>> formed = chooser.formed(selected, input.form);
  Result<EncodedUpdate> update =
      encode_with<T>(formed ? formed->view() : selected, sum, chooser.resolved(plan.codec), plan);
  if (update) update->chooser = std::move(chooser);
  return update;
}

/// Codes what of `sum` was selected. `sum` has all of `selected`, and where the index codec adds entries all of those.
template <typename T>
Result<EncodedUpdate> encode_selected(const StreamView<T>& selected, const StreamView<T>& sum, const EncodePlan& plan) {
  return plan.automatic ? encode_chosen<T>(selected, sum, plan) : encode_with<T>(selected, sum, plan.codec, plan);
}

template <typename T>
PartCut cut_of_largest(const StreamView<T>& sum, uint64_t count) {
  MagnitudeHistogram histogram;
  histogram.add(sum.values);
  const ThresholdCut cut = threshold_cut(histogram, count);
  return {cut.bin, cut.take};
}

/// What the cut lets through. Only f32 is on a grid.
Result<EncodedUpdate> encode_by_step(const StreamView<float>& sum, const EncodePlan& plan) {
  Stream<float> kept = sum.dense ? to_sparse(sum) : cut(sum, 0, sum.dimension);
  const uint32_t count = apply_cut(plan.by_step->cut, plan.by_step->window_indices, kept.indices, kept.values);
  kept.indices.resize(count);
  kept.values.resize(count);
  return encode_selected<float>(std::as_const(kept).view(), sum, plan);
}

template <typename T>
Result<EncodedUpdate> encode_typed(const StreamView<T>& sum, const EncodePlan& plan) {
  if constexpr (std::is_same_v<T, float>) {
    if (plan.by_step && plan.by_step->cut.bin != 0) return encode_by_step(sum, plan);
  }
  if (!plan.cut && !plan.largest) return encode_selected<T>(sum, sum, plan);
  const PartCut cut = plan.cut ? *plan.cut : cut_of_largest<T>(sum, *plan.largest);
  return encode_selected<T>(selected_of<T>(sum, cut).view(), sum, plan);
}

template <typename T>
Result<Stream<T>> checked_sum(Result<Stream<T>> sum) {
  if (sum && !all_finite<T>(sum->values)) {
    return fail(ErrorCode::kNonFinite, "the sum of a step overflowed: the gradients have diverged");
  }
  return sum;
}

template <typename T>
SharedHistogram magnitudes_of(const Stream<T>& sum) {
  auto histogram = std::make_shared<MagnitudeHistogram>();
  histogram->add(std::span(sum.values));
  return histogram;
}

template <typename T>
Result<ReduceTask::Output> reduce_whole(const ReduceTask::Input& input) {
  Result<Stream<T>> sum = checked_sum<T>(sum_many<T>(views_of<T>(input.contributions)));
  if (!sum) return std::unexpected(sum.error());
  ReduceTask::Output output;
  if (input.magnitudes == ReduceTask::Magnitudes::kCounted) output.histogram = magnitudes_of(*sum);
  if (input.plan) {
    Result<EncodedUpdate> update = encode_typed<T>(sum->view(), *input.plan);
    if (!update) return std::unexpected(update.error());
    output.update = std::move(*update);
  }
  output.sum = SharedStream::from(std::move(*sum));
  return output;
}

/// Contributions are finite, so a sum is never NaN; one that overflowed is among the large.
template <typename T>
Result<ReduceTask::Output> reduce_quick(const ReduceTask::Input& input, const QuickCut& quick) {
  Result<Stream<T>> sum = checked_sum<T>(sum_at_least<T>(views_of<T>(input.contributions), quick.edge));
  if (!sum) return std::unexpected(sum.error());
  Stream<T> smaller_cut;
  if (quick.edge < quick.threshold) smaller_cut = entries_at_least<T>(sum->view(), quick.threshold);
  const Stream<T>& selected = quick.edge < quick.threshold ? smaller_cut : *sum;
  ReduceTask::Output output;
  output.reached = selected.count();
  if (output.reached >= quick.least && output.reached <= quick.most) {
    Result<EncodedUpdate> update = encode_selected<T>(selected.view(), sum->view(), *input.plan);
    if (!update) return std::unexpected(update.error());
    output.update = std::move(*update);
  }
  // Beside the update as well: other parts may have moved the band meanwhile, and another number is taken then.
  output.sum = SharedStream::from(std::move(*sum));
  return output;
}

template <typename T>
Result<ReduceTask::Output> reduce_typed(const ReduceTask::Input& input) {
  return input.quick ? reduce_quick<T>(input, *input.quick) : reduce_whole<T>(input);
}

template <typename T>
std::optional<SharedBytes> merge_typed(const MergeTask::Input& input) {
  ContainerLimits limits;
  limits.dimension = input.dimension;
  std::vector<HeldStream<T>> held;
  std::vector<StreamView<T>> views;
  for (const SharedBytes& payload : input.payloads) {
    Result<HeldStream<T>> stream = hold_container<T>(payload, limits);
    if (!stream) return std::nullopt;
    held.push_back(std::move(*stream));
    views.push_back(held.back().view);
  }
  const Result<Stream<T>> sum = checked_sum<T>(sum_many<T>(views));
  if (!sum) return std::nullopt;
  EncodeOptions options;
  options.spec.index = find_index_codec(input.index)->lossless() ? input.index : IndexCodecId::kGap;
  options.index_base = input.index_base;
  Result<EncodedContainer<T>> coded = encode_container<T>(sum->view(), sum->view(), options);
  if (!coded || coded->bytes.size() + input.bytes_beside >= input.bytes_apart) return std::nullopt;
  return SharedBytes::from(std::move(coded->bytes));
}

struct BoundaryEntry {
  double magnitude = 0;
  uint64_t index = 0;  ///< of the bucket
  size_t part = 0;
};

/// What is taken first: the larger, then the one of lower index.
bool goes_first(const BoundaryEntry& a, const BoundaryEntry& b) {
  return a.magnitude != b.magnitude ? a.magnitude > b.magnitude : a.index < b.index;
}

template <typename T>
void gather_boundary(const StreamView<T>& sum, uint32_t bin, uint64_t begin, size_t part,
                     std::vector<BoundaryEntry>& out) {
  // One SIMD scan finds what is in the bin or above it, a few percent of the sum; only those are looked at one by one.
  IndexBuffer positions;
  select_by_cut<T>(sum.values, bin, sum.values.size(), positions);
  for (const uint32_t at : positions) {
    if (MagnitudeHistogram::bin_of(sum.values[at]) != bin) continue;
    const uint64_t local = sum.dense ? at : sum.indices[at];
    out.push_back({std::fabs(static_cast<double>(sum.values[at])), begin + local, part});
  }
}

}  // namespace

bool arrived_damaged(ByteSpan payload, uint64_t announced_hash) {
  return container_checksum(payload) != announced_hash;
}

Result<uint64_t> decoded_bytes_of(ByteSpan payload, uint64_t dimension, ValueType value_type) {
  const Result<ContainerHeader> header = read_container_header(payload);
  if (!header) return std::unexpected(header.error());
  if (header->dimension != dimension || header->value_type != value_type || header->count > dimension) {
    return fail(ErrorCode::kMalformed,
                fmt::format("a container of {} of dimension {} where {} of dimension {} belongs",
                            header->value_type == ValueType::kF32 ? "f32" : "f64", header->dimension,
                            value_type == ValueType::kF32 ? "f32" : "f64", dimension));
  }
  const uint64_t value_bytes = value_type == ValueType::kF32 ? sizeof(float) : sizeof(double);
  return header->count * (value_bytes + (header->dense ? 0 : sizeof(uint32_t)));
}

uint64_t DecodeTask::cost_ns() const {
  const uint64_t bytes = input_.payload.bytes.size();
  return input_.history && is_shortened(input_.payload.bytes) ? bytes * kRestoredByteNs : bytes / kDecodedBytesPerNs;
}

void DecodeTask::run() {
  if (input_.history && is_shortened(input_.payload.bytes)) {
    if (Status restored = restore(); !restored) {
      result_ = std::unexpected(restored.error());
      return;
    }
  }
  // read_container() verifies that the bytes are what their identity says; here, that it is the one announced.
  if (container_identity(input_.payload.bytes) != input_.hash) {
    result_ = fail(ErrorCode::kMalformed, "the payload's hash is not the one announced");
    return;
  }
  result_ = input_.value_type == ValueType::kF32 ? decode_stream<float>(input_) : decode_stream<double>(input_);
}

Status DecodeTask::restore() {
  was_shortened_ = true;
  ContainerLimits limits;
  limits.dimension = limits.count_max = input_.dimension;
  limits.bytes_max = input_.payload_bytes_max;
  Result<ByteBuffer> plain = restore_by_history(input_.payload.bytes, *input_.history, limits);
  if (!plain) return std::unexpected(plain.error());
  input_.payload = SharedBytes::from(std::move(*plain));
  return {};
}

Result<EncodedUpdate> encode_update(const SharedStream& sum, const EncodePlan& plan) {
  return sum.visit([&plan](const auto& view) { return encode_typed(view, plan); });
}

void ReduceTask::run() {
  MILLRACE_CHECK(!input_.contributions.empty(), input_.key.part);
  const bool single = input_.contributions.front().value_type() == ValueType::kF32;
  result_ = single ? reduce_typed<float>(input_) : reduce_typed<double>(input_);
}

uint64_t ReduceTask::cost_ns() const {
  uint64_t entries = 0;
  for (const SharedStream& one : input_.contributions) entries += one.count();
  return entries * (input_.quick ? kQuickEntryNs : kWholeEntryNs);
}

void QuotaTask::run() {
  take_.assign(input_.parts.size(), 0);
  std::vector<BoundaryEntry> boundary;
  for (size_t part = 0; part < input_.parts.size(); ++part) {
    const Part& from = input_.parts[part];
    from.sum.visit([&](const auto& view) { gather_boundary(view, input_.bin, from.begin, part, boundary); });
  }
  const size_t quota = std::min<uint64_t>(input_.quota, boundary.size());
  if (quota == 0) return;
  const auto last = boundary.begin() + static_cast<ptrdiff_t>(quota) - 1;
  std::nth_element(boundary.begin(), last, boundary.end(), goes_first);
  for (auto entry = boundary.begin(); entry != last + 1; ++entry) ++take_[entry->part];
}

uint64_t QuotaTask::cost_ns() const {
  uint64_t entries = 0;
  for (const Part& part : input_.parts) entries += part.sum.count();
  return entries * kCutEntryNs;
}

void MergeTask::run() {
  result_ = input_.value_type == ValueType::kF32 ? merge_typed<float>(input_) : merge_typed<double>(input_);
}

uint64_t MergeTask::cost_ns() const {
  uint64_t bytes = 0;
  for (const SharedBytes& one : input_.payloads) bytes += one.bytes.size();
  return bytes / kDecodedBytesPerNs + bytes / sizeof(uint32_t) * kWholeEntryNs;
}

uint64_t EncodeTask::cost_ns() const { return input_.sum.count() * kCutEntryNs; }

}  // namespace millrace::server
