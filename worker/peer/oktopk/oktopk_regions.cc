#include "worker/peer/oktopk/oktopk_regions.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "worker/peer/collectives/integer_collectives.h"

namespace millrace::peer {
namespace {

constexpr uint64_t kBinsARank = 8;     // of the first round
constexpr uint64_t kBinsMin = 64;      // of the first round
constexpr uint64_t kRefinement = 16;   // bins of a bin
constexpr uint64_t kToleranceOf = 16;  // a boundary may be off by half of this part of a share

/// Indices [begin, end), and how many entries of all ranks lie below and in it.
struct Bin {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t below = 0;
  uint64_t count = 0;
};

uint64_t entries_below(IndexSpan selected, uint64_t index) {
  if (index > std::numeric_limits<uint32_t>::max()) return selected.size();
  return static_cast<uint64_t>(std::ranges::lower_bound(selected, static_cast<uint32_t>(index)) - selected.begin());
}

/// whole * part / parts, rounded down, without overflow.
uint64_t oktopk_regions_share_of(uint64_t whole, uint64_t part, uint64_t parts) {
  return whole / parts * part + whole % parts * part / parts;
}

/// Cuts as they came off the wire, put in order.
Regions regions_of(std::vector<uint64_t> boundaries, uint64_t dimension) {
  Regions regions;
  boundaries.front() = 0;
  boundaries.back() = dimension;
  for (size_t i = 1; i < boundaries.size(); ++i)
    boundaries[i] = std::clamp(boundaries[i], boundaries[i - 1], dimension);
  regions.owner.resize(boundaries.size() - 1);
  std::iota(regions.owner.begin(), regions.owner.end(), 0u);
  regions.region = regions.owner;
  regions.boundaries = std::move(boundaries);
  return regions;
}

std::vector<uint64_t> even_boundaries(uint64_t dimension, uint32_t size) {
  std::vector<uint64_t> boundaries;
  for (uint64_t j = 0; j <= size; ++j) boundaries.push_back(oktopk_regions_share_of(dimension, j, size));
  return boundaries;
}

std::vector<Bin> bins_within(const std::vector<Bin>& wholes, uint64_t parts) {
  std::vector<Bin> bins;
  for (const Bin& whole : wholes) {
    const uint64_t width = whole.end - whole.begin;
    const uint64_t count = std::min(parts, width);
    for (uint64_t i = 0; i < count; ++i) {
      bins.push_back({whole.begin + oktopk_regions_share_of(width, i, count),
                      whole.begin + oktopk_regions_share_of(width, i + 1, count), 0, 0});
    }
  }
  return bins;
}

/// Fills in counts, over all ranks, of bins that lie in `wholes` in order.
Task<Status> count_bins(Channel& channel, IndexSpan selected, const std::vector<Bin>& wholes, std::vector<Bin>& bins,
                        uint32_t first_tag) {
  std::vector<uint64_t> counts;
  counts.reserve(bins.size());
  for (const Bin& bin : bins) counts.push_back(entries_below(selected, bin.end) - entries_below(selected, bin.begin));
  const Result<std::vector<uint64_t>> sums = co_await sum_numbers(channel, std::move(counts), first_tag);
  if (!sums) co_return std::unexpected(sums.error());
  auto whole = wholes.begin();
  uint64_t below = whole->below;
  for (size_t i = 0; i < bins.size(); ++i) {
    if (bins[i].begin >= whole->end) {
      ++whole;
      below = whole->below;
    }
    bins[i].below = below;
    bins[i].count = (*sums)[i];
    below += bins[i].count;
  }
  co_return Status{};
}

/// Describes a boundary to find: this number of entries of all ranks shall lie below it.
struct WantedRegions {
  uint32_t cut = 0;
  uint64_t below = 0;
};

/// Sets the cuts whose bins are fine enough; keeps the others, and returns their bins.
Result<std::vector<Bin>> fix_boundaries(const std::vector<Bin>& bins, uint64_t tolerance,
                                        std::vector<WantedRegions>& wanted, std::vector<uint64_t>& boundaries) {
  std::vector<Bin> open;
  std::vector<WantedRegions> left;
  auto bin = bins.begin();
  for (const WantedRegions& one : wanted) {
    while (bin != bins.end() && one.below >= bin->below + bin->count) ++bin;
    if (bin == bins.end() || one.below < bin->below) {
      return fail(ErrorCode::kMalformed, "histograms of selected indices do not add up");
    }
    if (bin->count <= tolerance || bin->end - bin->begin == 1) {
      const bool to_begin = one.below - bin->below <= bin->below + bin->count - one.below;
      boundaries[one.cut] = to_begin ? bin->begin : bin->end;
      continue;
    }
    left.push_back(one);
    if (open.empty() || open.back().begin != bin->begin) open.push_back(*bin);
  }
  wanted = std::move(left);
  return open;
}

Task<Result<std::vector<uint64_t>>> pooled_boundaries(Channel& channel, IndexSpan selected, uint64_t dimension,
                                                      uint32_t first_tag) {
  const uint32_t size = channel.size();
  std::vector<Bin> wholes{{0, dimension, 0, 0}};
  std::vector<Bin> bins = bins_within(wholes, std::max(kBinsMin, kBinsARank * size));
  if (Status status = co_await count_bins(channel, selected, wholes, bins, first_tag); !status) {
    co_return std::unexpected(status.error());
  }
  const uint64_t total = bins.back().below + bins.back().count;
  std::vector<uint64_t> boundaries = even_boundaries(dimension, size);
  if (total == 0) co_return std::move(boundaries);
  std::vector<WantedRegions> wanted;
  for (uint32_t j = 1; j < size; ++j) wanted.push_back({j, oktopk_regions_share_of(total, j, size)});
  const uint64_t tolerance = total / size / kToleranceOf;
  for (;;) {
    Result<std::vector<Bin>> open = fix_boundaries(bins, tolerance, wanted, boundaries);
    if (!open) co_return std::unexpected(open.error());
    if (wanted.empty()) co_return std::move(boundaries);
    first_tag += kNumberTags;
    wholes = std::move(*open);
    bins = bins_within(wholes, kRefinement);
    if (Status status = co_await count_bins(channel, selected, wholes, bins, first_tag); !status) {
      co_return std::unexpected(status.error());
    }
  }
}

/// Assigns a region to the rank that has most of its own entries in it. Ranks without a region then keep that of their
/// number; the remaining ones get the rest.
void assign(const std::vector<uint32_t>& favourites, Regions& regions) {
  const auto size = static_cast<uint32_t>(regions.owner.size());
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> wanted_boundaries;  // entries, rank, region
  for (uint32_t rank = 0; rank < size; ++rank) {
    const uint32_t region = favourites[2 * rank], entries = favourites[2 * rank + 1];
    if (region < size && entries > 0) wanted_boundaries.emplace_back(entries, rank, region);
  }
  std::ranges::stable_sort(wanted_boundaries, std::greater{}, [](const auto& wish) { return std::get<0>(wish); });
  std::ranges::fill(regions.owner, kNone);
  std::ranges::fill(regions.region, kNone);
  const auto give = [&regions](uint32_t rank, uint32_t region) {
    if (regions.owner[region] != kNone || regions.region[rank] != kNone) return;
    regions.owner[region] = rank;
    regions.region[rank] = region;
  };
  for (const auto& [entries, rank, region] : wanted_boundaries) give(rank, region);
  for (uint32_t rank = 0; rank < size; ++rank) give(rank, rank);
  uint32_t free = 0;
  for (uint32_t rank = 0; rank < size; ++rank) {
    if (regions.region[rank] != kNone) continue;
    while (regions.owner[free] != kNone) ++free;
    give(rank, free);
  }
}

}  // namespace

Result<Regions> restored_regions(std::span<const uint64_t> boundaries, std::span<const uint64_t> owners,
                                 uint64_t dimension) {
  const auto refuse = [] { return fail(ErrorCode::kInvalidArgument, "saved boundaries of oktopk are damaged"); };
  if (boundaries.empty() && owners.empty()) return Regions{};
  if (owners.empty() || boundaries.size() != owners.size() + 1) return refuse();
  if (boundaries.front() != 0 || boundaries.back() != dimension || !std::ranges::is_sorted(boundaries)) return refuse();
  const auto ranks = static_cast<uint32_t>(owners.size());
  Regions regions{{boundaries.begin(), boundaries.end()}, {}, std::vector<uint32_t>(ranks, ranks)};
  for (const uint64_t owner : owners) {
    if (owner >= ranks || regions.region[owner] != ranks) return refuse();
    regions.region[owner] = static_cast<uint32_t>(regions.owner.size());
    regions.owner.push_back(static_cast<uint32_t>(owner));
  }
  return regions;
}

Regions equal_regions(uint64_t dimension, uint32_t ranks) {
  return regions_of(even_boundaries(dimension, ranks), dimension);
}

Task<Result<Regions>> averaged_regions(Channel& channel, IndexSpan selected, uint64_t dimension, uint32_t first_tag) {
  const uint32_t size = channel.size();
  std::vector<uint64_t> numbers(size, 0);  // how many ranks have a say, and the sums of the P - 1 boundaries
  if (!selected.empty()) {
    numbers[0] = 1;
    for (uint32_t j = 1; j < size; ++j) numbers[j] = selected[oktopk_regions_share_of(selected.size(), j, size)];
  }
  const Result<std::vector<uint64_t>> sums = co_await sum_numbers(channel, std::move(numbers), first_tag);
  if (!sums) co_return std::unexpected(sums.error());
  std::vector<uint64_t> boundaries = even_boundaries(dimension, size);
  const uint64_t voters = sums->front();
  for (uint32_t j = 1; j < size && voters > 0; ++j) boundaries[j] = (*sums)[j] / voters;
  co_return regions_of(std::move(boundaries), dimension);
}

Task<Result<Regions>> pooled_regions(Channel& channel, IndexSpan selected, uint64_t dimension, uint32_t first_tag) {
  Result<std::vector<uint64_t>> boundaries = co_await pooled_boundaries(channel, selected, dimension, first_tag);
  if (!boundaries) co_return std::unexpected(boundaries.error());
  Regions regions = regions_of(std::move(*boundaries), dimension);
  uint32_t best = 0;
  uint64_t most = 0;
  for (uint32_t j = 0; j < channel.size(); ++j) {
    const uint64_t entries =
        entries_below(selected, regions.boundaries[j + 1]) - entries_below(selected, regions.boundaries[j]);
    // Where several are alike, one's own: ranks that are alike then keep theirs.
    if (entries < most || (entries == most && j != channel.rank())) continue;
    most = entries;
    best = j;
  }
  std::vector<uint32_t> own{best,
                            static_cast<uint32_t>(std::min<uint64_t>(most, std::numeric_limits<uint32_t>::max()))};
  const Result<std::vector<uint32_t>> favourites =
      co_await gather_numbers(channel, std::move(own), first_tag + kRegionTags - kNumberTags);
  if (!favourites) co_return std::unexpected(favourites.error());
  assign(*favourites, regions);
  co_return std::move(regions);
}

}  // namespace millrace::peer
