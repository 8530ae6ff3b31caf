#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "kernels/base/hash.h"
#include "kernels/reduce/reduce.h"
#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/boundaries_text.h"
#include "worker/peer/collectives/contribution.h"
#include "worker/peer/collectives/index_intersection.h"
#include "worker/peer/collectives/integer_collectives.h"
#include "worker/peer/collectives/local_selection.h"
#include "worker/peer/oktopk/oktopk_gather.h"
#include "worker/peer/oktopk/oktopk_regions.h"
#include "worker/peer/oktopk/oktopk_threshold.h"

/// Ok-Topk, the O(k) sparse allreduce: about the Topk of the sum of each rank's Topk. Each rank sums a region of the
/// index range and keeps the entries over a global threshold; all gather these entries.
///
///   - step mod tau' = 0   the local threshold is exact (LocalSelection), else reused and corrected by the count
///   - step mod tau = 0    regions are divided again (oktopk_regions.h)
///   - split and reduce    to rank + 1, rank + 2, ... around; a bucket of messages is sent before the one before it is
///                         summed
///   - step mod tau' = 0   the global threshold is exact (oktopk_threshold.h), else reused
///   - sizes               each region's numbers of entries above the threshold and at it
///   - gather              balanced where it must be (oktopk_gather.h)
///   - indexes             entries that this rank sent and that are in the result: Reduced::contributed
///
/// Differs from the paper: the global threshold is found without gathering all sums, which are up to P k. Where a
/// reused one leaves more than 2 k entries, or fewer than k / 2, the exact one is found at once. Entries equal to the
/// threshold can take the result over 2 k. Then those of the first regions are taken, up to k in all. A sum that is not
/// gathered returns to all ranks that contributed to it, since each of them still has its own entry.
///
/// Bounds    k: the largest number of entries that a rank selected, or that the result has. At exact steps it is the
///           settings' k (the result has more, where ties leave no more than twice that), else twice that at most. P >
///           2. The bounds hold for steps that do not find thresholds or regions; those add the costs in the files
///           above.
///   - sent    a rank: at most 2 k words in the split (its own entries outside its region). While gathering, at most
///             2 (2 k - 3 k / P). Together 6 k (P - 1) / P, for any regions, indices and values. About 4 k where the
///             entries are evenly distributed.
///   - received  a rank: 2 words for each entry of its region that another rank selected, and at most 2 k while
///             gathering. Regions from pooled histograms hold k (1 + 1/16) + P entries of all ranks when they are made:
///             4 k words and a bit. Those from averaged boundaries hold as many where the ranks' entries lie alike, and
///             up to P k where they do not. Not bounded: the entries that have moved since the regions were made.
///   - P = 2   sent and received: 4 k words; 3 k where a rank's region has half of its entries, as pooled ones have.
///   - beside  2 (P - 1) words of sizes, and an entry for each other rank where shares of the result do not come out
///             even. They show where k is not far above P.
/// With ties, empty ranks, or all indices in one place the same holds; one index is never split between ranks.
///
/// Messages  slices of a region; sums, in global indices. Numbers are u64 of regions and of the threshold, and as sizes
///           u32 (over it, equal to it). Where both sides know that there is nothing, none is sent.
/// Bits      the rank that sums a region adds its own entries first, then those of rank - 1, rank - 2, ...; no other
///           rank adds.
/// Source    [OkTopk22, 3.1, algorithm 1]
namespace millrace::peer {
namespace {

constexpr uint32_t kOktopkSplit = 0;
constexpr uint32_t kSizes = 0x100;  // and those after a threshold that had to be found again
constexpr uint32_t kOktopkGather = 0x400;
constexpr uint32_t kRegions = 0x10000;
constexpr uint32_t kThreshold = 0x20000;

/// Holds the entries of a region's sums that reach the threshold.
struct Reached {
  IndexBuffer positions;
  uint64_t above = 0;  ///< of these: over it; the others are equal to it
};

/// Writes the positions of the values that reach the threshold; returns how many. Without a branch, which a processor
/// could not predict. (One comparison in the loop: of two the compiler makes one.)
///
/// positions  [values]
size_t write_reaching(std::span<const float> values, MagnitudeKey threshold, uint32_t* positions) {
  size_t count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    positions[count] = static_cast<uint32_t>(i);
    count += static_cast<size_t>(magnitude_key(values[i]) >= threshold);
  }
  return count;
}

/// What all regions hold above the threshold and at it, by region.
struct Sizes {
  std::vector<uint64_t> above;
  std::vector<uint64_t> equal;
  uint64_t all_above = 0;
  uint64_t all_equal = 0;
};

class Oktopk final : public Allreduce {
 public:
  explicit Oktopk(const AllreduceSettings& settings)
      : settings_(settings), selection_(SelectionId::kThresholdReuse, settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kOktopk); }
  uint64_t next_step() const override { return step_; }

  uint64_t common_digest() const override {
    if (regions_.owner.empty()) return 0;
    std::string text;
    for (const uint64_t number : common_state()) text += std::to_string(number) + ' ';
    return hash64(text);
  }

  Retained retained() const override {
    Retained out;
    append_list(out, common_state());
    append_list(out, selection_.retained());
    return out;
  }

  Status restore_retained(std::span<const uint64_t> retained) override {
    RetainedReader reader(retained);
    const std::span<const uint64_t> common = reader.list(), of_selection = reader.list();
    if (Status status = reader.end(); !status) return status;
    RetainedReader numbers(common);
    const uint64_t step = numbers.next(0, std::numeric_limits<uint64_t>::max());
    const auto threshold = static_cast<MagnitudeKey>(numbers.next(1, kInfinityKey - 1));
    const std::span<const uint64_t> boundaries = numbers.list();
    const Result<Regions> regions = restored_regions(boundaries, numbers.list(), settings_.dimension);
    if (!regions) return std::unexpected(regions.error());
    if (Status status = numbers.end(); !status) return status;
    if (Status status = selection_.restore_retained(of_selection); !status) return status;
    step_ = step;
    threshold_ = threshold;
    regions_ = *regions;
    return {};
  }

  Task<Result<Reduced>> run(Channel& channel, Contribution given) override {
    const uint64_t step = step_++;
    const SharedStream own = std::move(given.own);
    const Result<SharedStream> selected = selection_.take(own);
    if (!selected) co_return std::unexpected(selected.error());
    const StreamView& mine = selected->view;
    if (step % settings_.boundaries_period != 0 && regions_.owner.size() != channel.size()) {
      co_return fail(ErrorCode::kInvalidArgument, "the restored boundaries are of " +
                                                      std::to_string(regions_.owner.size()) + " ranks, and there are " +
                                                      std::to_string(channel.size()));
    }
    if (step % settings_.boundaries_period == 0) {
      Result<Regions> regions = co_await make_regions(channel, mine.indices);
      if (!regions) co_return std::unexpected(regions.error());
      regions_ = std::move(*regions);
    }
    std::vector<Stream> sent(settings_.wire.contribution ? channel.size() : 0);  // by region, as they were decoded
    Result<SharedStream> region = co_await split_and_reduce(channel, mine, own, sent);
    if (!region) co_return std::unexpected(region.error());
    Result<Stream> sum = co_await select_and_gather(channel, step, region->view);
    if (!sum) co_return std::unexpected(sum.error());
    if (sent.empty()) co_return reduced(mine, mine, std::move(*sum));
    std::vector<StreamView> pieces;
    for (uint32_t at = 0; at < channel.size(); ++at) pieces.push_back(sent[at].view());
    const Result<Stream> all_sent = concatenate(pieces);
    if (!all_sent) co_return std::unexpected(all_sent.error());
    const Stream sparse = to_sparse(all_sent->view());
    co_return reduced(own.view, sparse.view(), std::move(*sum));
  }

 private:
  /// The step, the threshold, the boundaries, and the owner of each region.
  Retained common_state() const {
    Retained out{step_, threshold_};
    append_list(out, regions_.boundaries);
    append_list(out, Retained(regions_.owner.begin(), regions_.owner.end()));
    return out;
  }

  Task<Result<Regions>> make_regions(Channel& channel, IndexSpan indices) const {
    if (settings_.boundaries == Boundaries::kEqual) co_return equal_regions(settings_.dimension, channel.size());
    if (settings_.boundaries == Boundaries::kPooled) {
      co_return co_await pooled_regions(channel, indices, settings_.dimension, kRegions);
    }
    co_return co_await averaged_regions(channel, indices, settings_.dimension, kRegions);
  }

  /// The sum of this rank's region, whose dimension is the region's width.
  Task<Result<SharedStream>> split_and_reduce(Channel& channel, const StreamView& mine, const SharedStream& own,
                                              std::vector<Stream>& sent) {
    const uint32_t size = channel.size(), rank = channel.rank();
    const uint64_t begin = regions_.begin_of(rank), end = regions_.end_of(rank);
    Stream kept = slice_of(mine, begin, end);
    if (!sent.empty()) sent[regions_.region[rank]] = kept;
    SharedStream sum = SharedStream::from(std::move(kept));
    std::vector<Packet> packets;  // by region, where they travel as they are
    if (sent.empty()) {
      packets = pack_slices({mine, nullptr, 0}, regions_.boundaries, 0.0F, SliceForm::kSparse, channel.bodies());
    }
    uint32_t first = 1, previous = 1;  // steps around
    while (previous < size) {
      const uint32_t last = std::min(size, first + std::min(size, settings_.messages_in_flight));
      for (uint32_t step = first; step < last; ++step) {
        const uint32_t to = (rank + step) % size, to_region = regions_.region[to];
        if (regions_.begin_of(to) == regions_.end_of(to)) continue;
        if (sent.empty()) {
          channel.send(to, kOktopkSplit, std::move(packets[to_region]));
        } else if (Status status = send_coded(channel, mine, own, to, sent); !status) {
          co_return std::unexpected(status.error());
        }
      }
      // Those of the bucket before, while this one is on its way.
      if (begin < end && previous < first) {
        std::vector<SharedStream> slices;
        slices.reserve(first - previous);
        for (uint32_t step = previous; step < first; ++step) {
          const Packet packet = co_await channel.receive((rank + size - step) % size, kOktopkSplit);
          Result<SharedStream> slice = unpack(packet, end - begin);
          if (!slice) co_return std::unexpected(slice.error());
          slices.push_back(std::move(*slice));
        }
        if (Status status = add(channel, sum, slices); !status) co_return std::unexpected(status.error());
      }
      previous = first;
      first = last;
    }
    if (!all_finite(sum.view.values)) co_return fail(ErrorCode::kNonFinite, "a sum over the ranks overflowed");
    co_return std::move(sum);
  }

  /// mine: the entries selected of `own`, from which an index codec takes the entries that it adds.
  Status send_coded(Channel& channel, const StreamView& mine, const SharedStream& own, uint32_t to,
                    std::vector<Stream>& sent) const {
    const uint64_t begin = regions_.begin_of(to), end = regions_.end_of(to);
    sent[regions_.region[to]].dimension = end - begin;
    const SharedStream slice = SharedStream::from(slice_of(mine, begin, end));
    if (slice.view.count() == 0) {
      channel.send(to, kOktopkSplit, {BodyForm::kPairs, {}});
      return {};
    }
    const RandomKey random = random_key_of(settings_.wire.random, channel);
    const SharedStream around = millrace::slice_of(own, begin, end);
    Result<Packed> packed = pack_contribution(slice, around.view, {*settings_.wire.contribution, random, begin});
    if (!packed) return std::unexpected(packed.error());
    channel.send(to, kOktopkSplit, std::move(packed->packet));
    sent[regions_.region[to]] = packed->decoded.copy();
    return {};
  }

  static Status add(Channel& channel, SharedStream& sum, const std::vector<SharedStream>& slices) {
    std::vector<StreamView> views;
    views.reserve(slices.size() + 1);
    views.push_back(sum.view);
    for (const SharedStream& slice : slices) views.push_back(slice.view);
    uint64_t entries = 0;
    for (const StreamView& view : views) entries += view.count();
    channel.charge(reduce_time(entries));
    Result<Stream> added = sum_many(views);
    if (!added) return std::unexpected(added.error());
    sum = SharedStream::from(std::move(*added));
    return {};
  }

  /// Keeps the entries of the regions' sums over the global threshold, and gathers them.
  Task<Result<Stream>> select_and_gather(Channel& channel, uint64_t step, StreamView region) {
    bool exact = step % settings_.thresholds_period == 0;
    Reached reached;
    Sizes sizes;
    for (uint32_t tag = kSizes;; tag += kNumberTags, exact = true) {
      if (exact) {
        const auto key = co_await kth_largest_of_all(channel, region.values, settings_.k, kThreshold);
        if (!key) co_return std::unexpected(key.error());
        threshold_ = *key;
      }
      reached = reached_in(region);
      Result<Sizes> all = co_await exchange_sizes(channel, reached, tag);
      if (!all) co_return std::unexpected(all.error());
      sizes = std::move(*all);
      if (is_near(sizes)) break;
      if (exact) co_return fail(ErrorCode::kMalformed, "the ranks' sizes do not agree with the threshold");
    }
    const std::vector<uint64_t> counts = counts_of(sizes);
    const uint32_t own = regions_.region[channel.rank()];
    keep(reached, counts[own], region);
    Stream kept = entries_at(region, reached.positions);
    kept.dimension = settings_.dimension;
    const auto base = static_cast<uint32_t>(regions_.boundaries[own]);
    for (uint32_t& index : kept.indices) index += base;
    const GatherPlan plan = plan_gather(counts, settings_.balance_ratio);
    co_return co_await gather_by_plan(channel, settings_, plan, regions_, kept.view(), kOktopkGather);
  }

  Reached reached_in(const StreamView& region) const {
    Reached reached;
    reached.positions.resize(region.values.size());
    reached.positions.resize(write_reaching(region.values, threshold_, reached.positions.data()));
    for (const uint32_t position : reached.positions) {
      reached.above += magnitude_key(region.values[position]) > threshold_ ? 1 : 0;
    }
    return reached;
  }

  Task<Result<Sizes>> exchange_sizes(Channel& channel, const Reached& reached, uint32_t tag) {
    const uint64_t equal = reached.positions.size() - reached.above;
    if (reached.positions.size() > std::numeric_limits<uint32_t>::max()) {
      co_return fail(ErrorCode::kLimitExceeded, "a region has 2^32 sums over the threshold");
    }
    std::vector<uint32_t> own{static_cast<uint32_t>(reached.above), static_cast<uint32_t>(equal)};
    const Result<std::vector<uint32_t>> numbers = co_await gather_numbers(channel, std::move(own), tag);
    if (!numbers) co_return std::unexpected(numbers.error());
    Sizes sizes;
    for (uint32_t region = 0; region < channel.size(); ++region) {
      const size_t at = size_t{2} * regions_.owner[region];
      sizes.above.push_back((*numbers)[at]);
      sizes.equal.push_back((*numbers)[at + 1]);
      sizes.all_above += sizes.above.back();
      sizes.all_equal += sizes.equal.back();
    }
    co_return std::move(sizes);
  }

  /// Whether the threshold leaves about k. One that every sum reaches cannot leave more.
  bool is_near(const Sizes& sizes) const {
    const uint64_t k = settings_.k;
    return sizes.all_above <= 2 * k && (2 * (sizes.all_above + sizes.all_equal) >= k || threshold_ == 1);
  }

  /// Returns the counts by region: all that reach the threshold where these are 2 k at most. Else it takes as many of
  /// those equal to it, in the order of the regions, as make k.
  std::vector<uint64_t> counts_of(const Sizes& sizes) const {
    const uint64_t k = settings_.k;
    uint64_t quota = sizes.all_equal;
    if (sizes.all_above + sizes.all_equal > 2 * k) quota = k - std::min(k, sizes.all_above);
    std::vector<uint64_t> counts = sizes.above;
    for (size_t region = 0; region < counts.size(); ++region) {
      const uint64_t taken = std::min(quota, sizes.equal[region]);
      counts[region] += taken;
      quota -= taken;
    }
    return counts;
  }

  /// Leaves `count` of what reaches the threshold: of those equal to it the first ones.
  void keep(Reached& reached, uint64_t count, const StreamView& region) const {
    if (count == reached.positions.size()) return;
    uint64_t quota = count - reached.above;
    std::erase_if(reached.positions, [&](uint32_t position) {
      if (magnitude_key(region.values[position]) > threshold_) return false;
      if (quota == 0) return true;
      --quota;
      return false;
    });
  }

  /// The law: own entries whose index was sent and gathered are handed over; the changes that a codec made to them are
  /// returned.
  ///
  /// mine   the stream that `sent` was taken from: the selected entries, or all of `own` where a codec may have added
  ///        entries of it.
  static Reduced reduced(const StreamView& mine, const StreamView& sent, Stream&& sum) {
    Reduced out{{}, Stream::empty(sum.dimension), {}};
    const IndexBuffer gathered = positions_in_both(sent.indices, sum.indices);
    out.sum = SharedStream::from(std::move(sum));
    if (sent.values.data() == mine.values.data()) {
      out.contributed.resize(gathered.size());
      for (size_t i = 0; i < gathered.size(); ++i) out.contributed[i] = mine.indices[gathered[i]];
      return out;
    }
    size_t at = 0;
    for (const uint32_t position : gathered) {
      const uint32_t index = sent.indices[position];
      at = mine.dense ? index : at;
      while (!mine.dense && at < mine.indices.size() && mine.indices[at] < index) ++at;
      float left = -sent.values[position];
      if (mine.dense || (at < mine.indices.size() && mine.indices[at] == index)) {
        out.contributed.push_back(index);
        left += mine.values[at];
      }
      if (left == 0) continue;
      out.returned.indices.push_back(index);
      out.returned.values.push_back(left);
    }
    return out;
  }

  AllreduceSettings settings_;
  LocalSelection selection_;
  // The same on all ranks.
  uint64_t step_ = 0;
  Regions regions_;
  MagnitudeKey threshold_ = 1;
};

/// Adds sum_numbers() of `count` numbers.
void add_sum_of_numbers(CostChain& chain, double count) {
  const uint32_t paired = std::bit_floor(chain.ranks());
  const double bytes = count * sizeof(uint64_t);
  if (paired != chain.ranks()) chain.send(bytes, 2);
  for (double part = bytes / 2; part >= bytes / paired; part /= 2) chain.send(part, 2);
}

/// Boundaries averaged every tau steps; the global threshold every tau' steps, digit by digit, for which each rank
/// looks at the sums of its region.
void add_reevaluation(CostChain& chain) {
  CostChain boundaries = chain.besides();
  add_sum_of_numbers(boundaries, chain.ranks());
  chain.amortise(boundaries, chain.shape().boundary_period);
  CostChain threshold = chain.besides();
  threshold.add_sum(chain.ranks(), chain.slice_share());
  int left = kThresholdBits;
  while (left > 0) {
    const int bits = std::min(left, threshold_digit_bits(chain.shape().k));
    add_sum_of_numbers(threshold, std::exp2(bits));
    left -= bits;
  }
  chain.amortise(threshold, chain.shape().threshold_period);
}

/// With entries evenly distributed: the split, two numbers of each region, the gathering of k entries; and the periodic
/// work.
void cost_of_oktopk(CostChain& chain) {
  const SelectionSpeeds& select = chain.speeds().select;
  const double period = chain.shape().threshold_period;
  chain.select((select.reevaluate_s + (period - 1) * select.reuse_s) / period);
  const double share = chain.slice_share();
  chain.send_entries(chain.k() * share, chain.speeds().contribution, chain.ranks() - 1);
  chain.add_sparse(chain.k());
  chain.gather(2 * sizeof(uint32_t));
  for (uint32_t bit = 1; bit < chain.ranks(); bit *= 2) {
    chain.send_entries(chain.k() * share * std::min(bit, chain.ranks() - bit), chain.speeds().sums);
  }
  add_reevaluation(chain);
}

std::string describe_oktopk(const AllreduceSettings& settings) {
  return " tau=" + std::to_string(settings.boundaries_period) + "," + std::to_string(settings.thresholds_period) + " " +
         boundaries_name(settings.boundaries) + " balance=" + std::to_string(settings.balance_ratio);
}

}  // namespace

AlgorithmEntry oktopk_entry() {
  return {.info = {.id = AlgorithmId::kOktopk,
                   .name = "oktopk",
                   .source = "[OkTopk22, 3.1]",
                   .result = ResultKind::kGlobalTopk,
                   .selects = true,
                   .needs_sum = true,
                   .bounded_volume = true},
          .make = make_of<Oktopk>,
          .cost = cost_of_oktopk,
          .describe = describe_oktopk};
}

}  // namespace millrace::peer
