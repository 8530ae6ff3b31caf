#include "server/aggregation/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "kernels/codec/history/history_code.h"
#include "kernels/reduce/reduce.h"
#include "protocol/container/container.h"
#include "protocol/container/history_payload.h"

namespace millrace::server {
namespace {

/// Rough costs on one core, of four workers with 1 % each (`millrace-bench reduce`, `millrace-bench serve`).
constexpr uint64_t kDecodedBytesPerNs = 4;
constexpr uint64_t kRestoredIndexNs = 50;  ///< by the history
constexpr uint64_t kAskedIndexNs = 2;      ///< of a Bloom filter (`millrace-bench codec`)
constexpr uint64_t kScratchByteNs = 4;     ///< of bloom_p2's conflict sets, which are written and read at random
constexpr uint64_t kQuickEntryNs = 4;
constexpr uint64_t kWholeEntryNs = 9;
constexpr uint64_t kSelectEntryNs = 2;

ByteSpan index_code_of(ByteSpan payload, const ContainerHeader& header) {
  return payload.subspan(kContainerHeaderBytes, header.index_bytes);
}

/// More for each entry, of a codec that the lists below lack: from 2 to 14, measured of 2^20 entries.
constexpr uint64_t kSlowEntryNs = 8;

/// Codecs whose time is that of their bytes.
constexpr std::array kIndexCodesByBytes = {IndexCodecId::kRaw, IndexCodecId::kBitmap, IndexCodecId::kGap};
constexpr std::array kValueCodesByBytes = {ValueCodecId::kRaw, ValueCodecId{3}, ValueCodecId{4}};  // f16, bf16
/// Codecs of few bits a value: about 1 ns, mostly for the memory that they fill.
constexpr std::array kValueCodesByEntry = {ValueCodecId::kQsgd, ValueCodecId{5}, ValueCodecId{6},
                                           ValueCodecId{7}};  // sign_mean, terngrad, onebit

template <typename Codes>
bool is_among(const Codes& codes, typename Codes::value_type code) {
  return std::ranges::find(codes, code) != codes.end();
}

uint64_t value_code_ns(const ContainerHeader& header) {
  if (is_among(kValueCodesByBytes, header.value_codec)) return 0;
  return header.count * (is_among(kValueCodesByEntry, header.value_codec) ? 1 : kSlowEntryNs);
}

uint64_t index_code_ns(ByteSpan payload, const ContainerHeader& header) {
  if (header.dense) return 0;
  if (header.index_codec == kHistoryIndexCodec) return header.count * kRestoredIndexNs;
  const IndexCodec* const codec = find_index_codec(header.index_codec);
  if (codec == nullptr) return 0;
  // A codec has a limit of its own where its decoder asks for every index of the dimension.
  if (codec->dimension_max() == kDimensionMax) {
    return is_among(kIndexCodesByBytes, header.index_codec) ? 0 : header.count * kSlowEntryNs;
  }
  const uint64_t scratch = codec->decode_scratch_bytes(index_code_of(payload, header), header.dimension, header.count);
  return header.dimension * kAskedIndexNs + scratch * kScratchByteNs;
}

void enter(StageWatch* watch, TaskStage stage) {
  if (watch != nullptr) watch->enter(stage);
}

/// Returns the entries of `sum` that pass the cut, sparse.
Stream selected_of(const StreamView& sum, const PartThreshold& cut) {
  IndexBuffer positions;
  select_by_histogram(sum.values, cut.bin, cut.take, positions);
  Stream selected = Stream::empty(sum.dimension);
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
template <typename Visit>
void for_each_carried(const StreamView& carried, const StreamView& stream, Visit visit) {
  size_t at = 0;
  for (size_t entry = 0; entry < carried.count(); ++entry) {
    const uint32_t index = carried.dense ? static_cast<uint32_t>(entry) : carried.indices[entry];
    if (stream.dense) {
      visit(entry, stream.values[index]);
      continue;
    }
    while (at < stream.indices.size() && stream.indices[at] < index) ++at;
    visit(entry, at < stream.indices.size() && stream.indices[at] == index ? stream.values[at] : 0.0F);
  }
}

/// Returns the sum of |a - b|, in f64 and in an order that fits vectors.
double distance(std::span<const float> a, std::span<const float> b) {
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

/// Returns the distance that the code added: of the selected values, and of those in `sum` that the index codec added.
double codec_error(const StreamView& selected, const StreamView& carried, const StreamView& sum) {
  if (carried.values.size() == selected.values.size()) return distance(selected.values, carried.values);
  double error = 0;
  for_each_carried(carried, sum, [&](size_t entry, float value) {
    error += std::fabs(static_cast<double>(value) - static_cast<double>(carried.values[entry]));
  });
  return error;
}

std::vector<StreamView> views_of(const std::vector<SharedStream>& contributions) {
  std::vector<StreamView> views;
  views.reserve(contributions.size());
  for (const SharedStream& one : contributions) views.push_back(one.view);
  return views;
}

/// Finds the values of each contribution that the update carries, and whether their sum is the update's.
void audit(const StreamView& selected, const StreamView& carried, const StreamView& sum, const EncodePlan& plan,
           EncodedUpdate& update) {
  const std::vector<StreamView> contributions = views_of(plan.audited);
  UpdateAudit found;
  if (plan.extent == Extent::kEverything) {
    found = audit_update(sum, sum.values, contributions, Extent::kEverything);
  } else if (carried.count() == selected.count()) {
    found = audit_update(carried, selected.values, contributions, Extent::kItsIndices);
  } else {
    std::vector<float> sums(carried.count());
    for_each_carried(carried, sum, [&](size_t entry, float value) { sums[entry] = value; });
    found = audit_update(carried, sums, contributions, Extent::kItsIndices);
  }
  update.carried = std::move(found.carried);
  update.imbalance = found.imbalance;
}

Result<EncodedUpdate> encode_with(const StreamView& selected, const StreamView& sum, const CodecSpec& codec,
                                  const EncodePlan& plan) {
  const EncodeOptions options{codec, plan.random, plan.index_base};
  Result<EncodedContainer> coded = encode_container(selected, sum, options);
  if (!coded) return std::unexpected(coded.error());
  EncodedUpdate update;
  update.entries = coded->count;
  const StreamView carried = coded->exact ? selected : coded->decoded.view();
  if (!coded->exact) update.codec_error = codec_error(selected, carried, sum);
  if (!plan.audited.empty()) audit(selected, carried, sum, plan, update);
  if (plan.for_history) {
    const IndexSpan changed = changed_indices(carried, update.changed);
    if (update.changed.empty()) update.changed.assign(changed.begin(), changed.end());
  }
  update.container = SharedBytes::from(std::move(coded->bytes));
  return update;
}

/// Encodes with codec auto. An update of everything may take either form. The entries of a cut update alone are the
/// carried ones.
Result<EncodedUpdate> encode_chosen(const StreamView& selected, const StreamView& sum, const EncodePlan& plan) {
  CodecChooser chooser = plan.automatic->chooser;
  ChoiceInput input;
  input.spec = plan.codec;
  input.speeds = &plan.automatic->costs.speeds();
  input.link_bits_per_s = LinkRate(plan.automatic->costs.link_bits_per_s).bits_per_s();
  input.copies = plan.automatic->receivers;
  const bool whole = plan.extent == Extent::kEverything && !plan.threshold && !plan.largest && !plan.by_step;
  input.form = whole ? CodedForm::kEither : CodedForm::kAsItIs;
  chooser.choose(selected, input);
  const std::optional<Stream> formed = chooser.formed(selected, input.form);
  Result<EncodedUpdate> update =
      encode_with(formed ? formed->view() : selected, sum, chooser.resolved(plan.codec), plan);
  if (update) update->chooser = std::move(chooser);
  return update;
}

/// Encodes the selected entries of `sum`. `sum` has all of `selected`, and all entries that the index codec adds.
Result<EncodedUpdate> encode_selected(const StreamView& selected, const StreamView& sum, const EncodePlan& plan) {
  return plan.automatic ? encode_chosen(selected, sum, plan) : encode_with(selected, sum, plan.codec, plan);
}

PartThreshold threshold_of_largest(const StreamView& sum, uint64_t count) {
  MagnitudeHistogram histogram;
  histogram.add(sum.values);
  const HistogramThreshold cut = histogram_threshold(histogram, count);
  return {cut.bin, cut.take};
}

/// Encodes the entries that pass the cut.
Result<EncodedUpdate> encode_by_step(const StreamView& sum, const EncodePlan& plan, StageWatch* watch) {
  enter(watch, TaskStage::kThreshold);
  Stream kept = sum.dense ? to_sparse(sum) : slice_of(sum, 0, sum.dimension);
  const uint32_t count =
      apply_threshold(plan.by_step->threshold, plan.by_step->window_indices, kept.indices, kept.values);
  kept.indices.resize(count);
  kept.values.resize(count);
  enter(watch, TaskStage::kEncode);
  return encode_selected(std::as_const(kept).view(), sum, plan);
}

Result<EncodedUpdate> encode_sum(const StreamView& sum, const EncodePlan& plan, StageWatch* watch) {
  if (plan.by_step && plan.by_step->threshold.bin != 0) return encode_by_step(sum, plan, watch);
  if (!plan.threshold && !plan.largest) {
    enter(watch, TaskStage::kEncode);
    return encode_selected(sum, sum, plan);
  }
  enter(watch, TaskStage::kThreshold);
  const PartThreshold cut = plan.threshold ? *plan.threshold : threshold_of_largest(sum, *plan.largest);
  const Stream selected = selected_of(sum, cut);
  enter(watch, TaskStage::kEncode);
  return encode_selected(selected.view(), sum, plan);
}

Result<Stream> checked_sum(Result<Stream> sum) {
  if (sum && !all_finite(sum->values)) {
    return fail(ErrorCode::kNonFinite, "the sum of a step overflowed: the gradients have diverged");
  }
  return sum;
}

SharedHistogram magnitudes_of(const StreamView& sum) {
  auto histogram = std::make_shared<MagnitudeHistogram>();
  histogram->add(sum.values);
  return histogram;
}

Result<SharedStream> whole_sum(const std::vector<SharedStream>& contributions) {
  const SharedStream& first = contributions.front();
  const bool stays_sparse = !first.view.dense && first.view.count() < dense_from_count(first.view.dimension);
  // The sum of one is that contribution, which is finite.
  if (contributions.size() == 1 && stays_sparse) return first;
  Result<Stream> sum = checked_sum(sum_many(views_of(contributions)));
  if (!sum) return std::unexpected(sum.error());
  return SharedStream::from(std::move(*sum));
}

Result<ReduceTask::Output> reduce_whole(const ReduceTask::Input& input, StageWatch* watch) {
  Result<SharedStream> sum = whole_sum(input.contributions);
  if (!sum) return std::unexpected(sum.error());
  ReduceTask::Output output;
  if (input.magnitudes == ReduceTask::Magnitudes::kCounted) {
    enter(watch, TaskStage::kThreshold);
    output.histogram = magnitudes_of(sum->view);
  }
  if (input.plan) {
    Result<EncodedUpdate> update = encode_sum(sum->view, *input.plan, watch);
    if (!update) return std::unexpected(update.error());
    output.update = std::move(*update);
  }
  output.sum = std::move(*sum);
  return output;
}

/// Sums and cuts a part in one pass. Contributions are finite, so a sum is never NaN; one that overflowed is among the
/// large ones.
Result<ReduceTask::Output> reduce_quick(const ReduceTask::Input& input, const FusedThreshold& quick,
                                        StageWatch* watch) {
  Result<Stream> sum = checked_sum(sum_at_least(views_of(input.contributions), quick.edge));
  if (!sum) return std::unexpected(sum.error());
  enter(watch, TaskStage::kThreshold);
  Stream above_threshold;
  if (quick.edge < quick.threshold) above_threshold = entries_at_least(sum->view(), quick.threshold);
  const Stream& selected = quick.edge < quick.threshold ? above_threshold : *sum;
  ReduceTask::Output output;
  output.reached = selected.count();
  if (output.reached >= quick.least && output.reached <= quick.most) {
    enter(watch, TaskStage::kEncode);
    Result<EncodedUpdate> update = encode_selected(selected.view(), sum->view(), *input.plan);
    if (!update) return std::unexpected(update.error());
    output.update = std::move(*update);
  }
  // Beside the update as well: other parts may move the band until then, and another number is taken.
  output.sum = SharedStream::from(std::move(*sum));
  return output;
}

std::optional<SharedBytes> merge(const MergeTask::Input& input) {
  ContainerLimits limits;
  limits.dimension = input.dimension;
  std::vector<SharedStream> held;
  std::vector<StreamView> views;
  for (const SharedBytes& payload : input.payloads) {
    Result<SharedStream> stream = read_shared_container(payload, limits);
    if (!stream) return std::nullopt;
    held.push_back(std::move(*stream));
    views.push_back(held.back().view);
  }
  const Result<Stream> sum = checked_sum(sum_many(views));
  if (!sum) return std::nullopt;
  EncodeOptions options;
  options.spec.index = find_index_codec(input.index)->lossless() ? input.index : IndexCodecId::kGap;
  options.index_base = input.index_base;
  Result<EncodedContainer> coded = encode_container(sum->view(), sum->view(), options);
  if (!coded || coded->bytes.size() + input.bytes_beside >= input.bytes_apart) return std::nullopt;
  return SharedBytes::from(std::move(coded->bytes));
}

struct BoundaryEntry {
  double magnitude = 0;
  uint64_t index = 0;  ///< of the bucket
  size_t part = 0;
};

/// Returns whether `a` is taken before `b`: the larger magnitude first, then the lower index.
bool goes_first(const BoundaryEntry& a, const BoundaryEntry& b) {
  return a.magnitude != b.magnitude ? a.magnitude > b.magnitude : a.index < b.index;
}

void gather_boundary(const StreamView& sum, uint32_t bin, uint64_t begin, size_t part,
                     std::vector<BoundaryEntry>& out) {
  // One SIMD scan finds the entries in the bin or above it, a few percent of the sum. Only those are looked at one by
  // one.
  IndexBuffer positions;
  select_by_histogram(sum.values, bin, sum.values.size(), positions);
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

DecodeCost decode_cost_of(const SharedBytes& payload) {
  DecodeCost cost{.ns = payload.bytes.size() / kDecodedBytesPerNs};
  const Result<ContainerHeader> header = read_container_header(payload.bytes);
  if (!header) return cost;
  cost.entries = header->count;
  if (is_viewed(payload)) return cost;
  cost.ns += value_code_ns(*header) + index_code_ns(payload.bytes, *header);
  return cost;
}

Result<uint64_t> decoded_bytes_of(ByteSpan payload, uint64_t dimension) {
  const Result<ContainerHeader> header = read_container_header(payload);
  if (!header) return std::unexpected(header.error());
  if (header->dimension != dimension || header->count > dimension) {
    return fail(ErrorCode::kMalformed,
                fmt::format("a container of dimension {} with {} entries where one of dimension {} belongs",
                            header->dimension, header->count, dimension));
  }
  return header->count * (header->dense ? sizeof(float) : kPairBytes);
}

namespace {

/// Returns the most memory that decoding the indices takes beside payload and stream.
Result<uint64_t> decode_scratch_of(ByteSpan payload, const CodecSpec& codec_up) {
  const Result<ContainerHeader> header = read_container_header(payload);
  if (!header) return std::unexpected(header.error());
  const IndexCodec* const codec = find_index_codec(header->index_codec);
  if (codec == nullptr) return uint64_t{0};  // dense; shortened; or unknown, which its task refuses
  if (!codec->lossless() && codec->id() != codec_up.index) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("index codec {} changes the indices, and codec_up is {}; a contribution has that codec, or "
                            "an index codec without loss",
                            codec->name(), codec_text(codec_up)));
  }
  return codec->decode_scratch_bytes(index_code_of(payload, *header), header->dimension, header->count);
}

}  // namespace

Result<ContributionMemory> contribution_memory(const SharedBytes& payload, uint64_t dimension,
                                               const CodecSpec& codec_up) {
  const Result<uint64_t> entries = decoded_bytes_of(payload.bytes, dimension);
  if (!entries) return std::unexpected(entries.error());
  const Result<uint64_t> scratch = decode_scratch_of(payload.bytes, codec_up);
  if (!scratch) return std::unexpected(scratch.error());
  const uint64_t before = payload.bytes.size() + *scratch;
  const uint64_t decoded = is_viewed(payload) ? 0 : *entries;
  const uint64_t restored = restored_bytes_estimate(payload.bytes);
  return ContributionMemory{.asked_bytes = std::max(before + decoded, restored),
                            .charged_bytes = std::max({before, decoded, restored})};
}

DecodeTask::DecodeTask(Input input) : input_(std::move(input)), cost_ns_(decode_cost_of(input_.payload).ns) {}

void DecodeTask::run() {
  if (input_.history && is_shortened(input_.payload.bytes)) {
    if (Status restored = restore(); !restored) {
      result_ = std::unexpected(restored.error());
      return;
    }
  }
  // read_container() verifies that the bytes match their identity; here, that it is the announced one.
  if (container_identity(input_.payload.bytes) != input_.hash) {
    result_ = fail(ErrorCode::kMalformed, "the payload's hash is not the one announced");
    return;
  }
  ContainerLimits limits;
  limits.dimension = limits.count_max = input_.dimension;
  limits.bytes_max = input_.payload.bytes.size();
  result_ = read_shared_container(input_.payload, limits);
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

Result<EncodedUpdate> encode_update(const SharedStream& sum, const EncodePlan& plan, StageWatch* watch) {
  return encode_sum(sum.view, plan, watch);
}

void ReduceTask::run() {
  MILLRACE_CHECK(!input_.contributions.empty(), input_.key.part);
  result_ = input_.quick ? reduce_quick(input_, *input_.quick, stage_watch()) : reduce_whole(input_, stage_watch());
}

uint64_t ReduceTask::cost_ns() const {
  uint64_t entries = 0;
  for (const SharedStream& one : input_.contributions) entries += one.view.count();
  return entries * (input_.quick ? kQuickEntryNs : kWholeEntryNs);
}

void QuotaTask::run() {
  take_.assign(input_.parts.size(), 0);
  std::vector<BoundaryEntry> boundary;
  for (size_t part = 0; part < input_.parts.size(); ++part) {
    const Part& from = input_.parts[part];
    gather_boundary(from.sum.view, input_.bin, from.begin, part, boundary);
  }
  const size_t quota = std::min<uint64_t>(input_.quota, boundary.size());
  if (quota == 0) return;
  const auto last = boundary.begin() + static_cast<ptrdiff_t>(quota) - 1;
  std::nth_element(boundary.begin(), last, boundary.end(), goes_first);
  for (auto entry = boundary.begin(); entry != last + 1; ++entry) ++take_[entry->part];
}

uint64_t QuotaTask::cost_ns() const {
  uint64_t entries = 0;
  for (const Part& part : input_.parts) entries += part.sum.view.count();
  return entries * kSelectEntryNs;
}

MergeTask::MergeTask(Input input) : input_(std::move(input)) {
  for (const SharedBytes& one : input_.payloads) {
    const DecodeCost cost = decode_cost_of(one);
    cost_ns_ += cost.ns + cost.entries * kWholeEntryNs;
  }
}

void MergeTask::run() { result_ = merge(input_); }

uint64_t EncodeTask::cost_ns() const { return input_.sum.view.count() * kSelectEntryNs; }

}  // namespace millrace::server
