#include "worker/training/exchange/peer_grid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "kernels/stream/drop_zeros.h"
#include "protocol/job/job_spec_reproducible.h"
#include "protocol/job/step_sends.h"
#include "worker/peer/channel/stream_wire.h"

namespace millrace::training {
namespace {

std::unexpected<Error> refuse(std::string sentence) { return fail(ErrorCode::kInvalidArgument, std::move(sentence)); }

/// As shards count it (server/rounds/job_rounds.cc): a density is rounded up.
uint64_t entries_of(const protocol::ReselectSpec& spec, uint64_t dimension) {
  if (spec.reselect == protocol::Reselect::kNone) return 0;
  const auto by_density = static_cast<uint64_t>(std::ceil(spec.density * static_cast<double>(dimension)));
  return std::min(dimension, spec.k != 0 ? spec.k : by_density);
}

/// Entries of both streams at one index; indices ascend.
class Finder {
 public:
  explicit Finder(const StreamView& stream) : stream_(stream) {}
  bool has(uint64_t index) {
    if (stream_.dense) return true;
    while (at_ < stream_.indices.size() && stream_.indices[at_] < index) ++at_;
    return at_ < stream_.indices.size() && stream_.indices[at_] == index;
  }

 private:
  StreamView stream_;
  size_t at_ = 0;
};

}  // namespace

Status check_peer_grid(const OptimizerOptions& options, uint64_t dimension) {
  if (!options.job.guarantees.reproducible) {
    if (reselects(options)) return refuse("--reselect is of --reproducible: else take --algorithm oktopk");
    return {};
  }
  const peer::AlgorithmInfo& info = peer::algorithm_info(options.algorithm);
  const std::string name(info.name);
  if (info.result != peer::ResultKind::kExactSum || info.selects) {
    return refuse("--reproducible with " + name +
                  ": the entries that it keeps of the sum depend on the ranks that add them; take one with exact sums, "
                  "and --reselect topk:DENSITY");
  }
  if (options.quantizer) {
    return refuse(
        "--reproducible with a --quantizer: sums of slices are rounded by the ranks that own them; leave it out");
  }
  if (const auto codec = codec_of(options); codec && is_lossy(*codec)) {
    return refuse("--reproducible needs a --codec-up without loss");
  }
  if (options.codec_error == CodecError::kDrop) {
    return refuse("--reproducible keeps what rounding to the grid leaves: nothing is dropped");
  }
  if (const uint32_t period = reselect_of(options).threshold_period; period != 1) {
    return refuse("--reselect with period " + std::to_string(period) +
                  ": peers cut every step by the counts of the step before; leave the period out");
  }
  if (reselects(options) && protocol::sends_uncompressed(select_of(options), dimension)) {
    return refuse(
        "--reselect with a --select that sends the tensor uncompressed (dense=STEPS, or by_size up to 4,096 entries): "
        "--reselect would cut those steps' sums, too; leave one of them out");
  }
  if (staleness_of(options) != 0) {
    return refuse("--reproducible with --staleness: exponents go by the updates of all steps before; set it to 0");
  }
  const auto made = PeerGrid::make(options, dimension, 1);
  return made ? Status{} : std::unexpected(made.error());
}

Result<PeerGrid> PeerGrid::make(const OptimizerOptions& options, uint64_t dimension, uint32_t ranks) {
  const Grid grid = options.job.grid.value_or(protocol::kReproducibleGrid);
  if (const Status valid = protocol::check_grid(grid); !valid) return std::unexpected(valid.error());
  return PeerGrid(BlockGrid(grid.block_indices, grid.exponent_initial, ranks),
                  entries_of(reselect_of(options), dimension));
}

SharedStream PeerGrid::round(const SharedStream& selected) {
  selected_ = selected;
  Stream sent = selected.copy();
  grid_.round(selected.view, sent.values);
  back_.resize(sent.values.size());
  Buffer<float> beyond(sent.values.size());
  grid_remainders(selected.view.values, sent.values, back_, beyond);
  drop_zeros(sent);
  return SharedStream::from(std::move(sent));
}

/// False: the whole sum is the update.
bool PeerGrid::cut(SharedStream& sum) {
  if (k_ == 0) return false;
  const SumThreshold by_before = counted_ ? threshold_of(counts_, k_) : SumThreshold{};
  counts_.clear();
  counts_.add(sum.view.values);
  counted_ = true;
  if (by_before.bin == 0) return false;
  Stream kept = sum.view.dense ? to_sparse(sum.view) : sum.copy();
  const uint32_t count = apply_threshold(by_before, grid_.block_indices(), kept.indices, kept.values);
  kept.indices.resize(count);
  kept.values.resize(count);
  sum = SharedStream::from(std::move(kept));
  return true;
}

Retained PeerGrid::retained() const {
  Retained counts;
  const uint32_t bins = counted_ ? SumHistogram::kBins : 0;
  for (uint32_t bin = 0; bin < bins; ++bin) {
    if (counts_.count(bin) == 0) continue;
    counts.push_back(bin);
    counts.push_back(counts_.count(bin));
  }
  Retained out{counted_ ? uint64_t{1} : uint64_t{0}};
  append_list(out, grid_.retained());
  append_list(out, counts);
  return out;
}

uint64_t PeerGrid::digest() const {
  const Retained state = retained();
  return hash64(ByteSpan(std::bit_cast<const uint8_t*>(state.data()), state.size() * sizeof(state[0])));
}

Status PeerGrid::restore_retained(std::span<const uint64_t> retained, uint64_t dimension) {
  RetainedReader reader(retained);
  const bool counted = reader.next(0, 1) == 1;
  const std::span<const uint64_t> exponents = reader.list(), counts = reader.list();
  if (Status status = reader.end(); !status) return status;
  SumHistogram histogram;
  RetainedReader bins(counts);
  uint64_t least = 0, left = dimension;
  for (size_t at = 0; at < counts.size() / 2; ++at) {
    const uint64_t bin = bins.next(std::min<uint64_t>(least, SumHistogram::kBins - 1), SumHistogram::kBins - 1);
    const uint64_t count = bins.next(1, std::max<uint64_t>(left, 1));
    if (bin < least || count > left) return refuse("saved counts of the step before are damaged");
    histogram.restore(static_cast<uint32_t>(bin), count);
    least = bin + 1;
    left -= count;
  }
  if (Status status = bins.end(); !status) return status;
  const uint64_t blocks = (dimension + grid_.block_indices() - 1) / grid_.block_indices();
  if (Status status = grid_.restore_retained(exponents, blocks); !status) return status;
  counts_ = std::move(histogram);
  counted_ = counted;
  return {};
}

PeerGrid::Decided PeerGrid::decide(SharedStream&& sum) {
  Decided decided;
  decided.is_selected = cut(sum);
  decided.update = std::move(sum);
  grid_.observe(decided.update.view);
  grid_.end_step();
  decided.returned = Stream::empty(selected_.view.dimension);
  Finder update(decided.update.view);
  for (size_t i = 0; i < selected_.view.values.size(); ++i) {
    const auto index = selected_.view.dense ? static_cast<uint32_t>(i) : selected_.view.indices[i];
    const float back = !decided.is_selected || update.has(index) ? back_[i] : selected_.view.values[i];
    if (back == 0) continue;
    decided.returned.indices.push_back(index);
    decided.returned.values.push_back(back);
  }
  selected_ = {};
  return decided;
}

}  // namespace millrace::training
