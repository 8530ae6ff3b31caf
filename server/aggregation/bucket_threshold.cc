#include "server/aggregation/bucket_threshold.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/base/check.h"

namespace millrace::server {
namespace {

/// Half-width of the band that a reuse step's size is held to.
constexpr double kReuseBand = 0.02;

/// Between exact steps, one step in this many is summed whole for its histogram. Shares between shards and parts move
/// with the gradients, over tens of steps; a step with a histogram costs about twice one without.
constexpr uint64_t kCountEvery = 8;

/// A quick threshold that lately missed the share by less than this is trusted to hit the band. Otherwise smaller sums
/// are kept at hand as well, for a multiple of the miss. The right number of them is then taken.
constexpr double kTrustedSpread = kReuseBand / 2;
constexpr double kSpreadMargin = 2;
constexpr double kMarginMax = 1;
constexpr double kSpreadDecay = 0.9;

/// Half of a miss is corrected at a time: chance is then not followed, and drift is with a lag of two steps.
constexpr double kCorrection = 0.5;
constexpr double kMissMax = 8;
constexpr double kAimMax = 4;

constexpr uint32_t kInfiniteBin = 0x7f80;

uint64_t rounded(double value) { return value <= 0 ? 0 : static_cast<uint64_t>(std::llround(value)); }

float bin_edge(uint32_t bin) { return std::bit_cast<float>(bin << 16); }

}  // namespace

std::vector<uint64_t> split_take(uint64_t take, std::span<const uint64_t> in_bin) {
  const uint64_t total = std::accumulate(in_bin.begin(), in_bin.end(), uint64_t{0});
  take = std::min(take, total);
  std::vector<uint64_t> quotas(in_bin.size(), 0);
  if (take == 0) return quotas;
  // Counts are below 2^48 and there are at most 2^32 entries a holder: the product needs 128 bits.
  using Wide = unsigned __int128;
  std::vector<std::pair<uint64_t, size_t>> remainders;
  uint64_t given = 0;
  for (size_t holder = 0; holder < in_bin.size(); ++holder) {
    const Wide product = static_cast<Wide>(take) * in_bin[holder];
    quotas[holder] = static_cast<uint64_t>(product / total);
    remainders.emplace_back(static_cast<uint64_t>(product % total), holder);
    given += quotas[holder];
  }
  std::ranges::sort(remainders, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  // A holder with a remainder has quota < in_bin, so one more always fits; the missing ones are fewer than the
  // remainders.
  for (size_t at = 0; given < take; ++at, ++given) ++quotas[remainders[at].second];
  return quotas;
}

uint64_t count_above(const MagnitudeHistogram& histogram, uint32_t bin) {
  uint64_t above = 0;
  const std::span<const MagnitudeHistogram::Bin> bins = histogram.bins();
  const auto first = std::ranges::upper_bound(bins, bin, {}, &MagnitudeHistogram::Bin::bin);
  for (auto at = first; at != bins.end(); ++at) above += at->count;
  return above;
}

float magnitude_reached_by(const MagnitudeHistogram& histogram, double count) {
  const HistogramThreshold cut = histogram_threshold(histogram, std::max<uint64_t>(rounded(count), 1));
  const float low = bin_edge(cut.bin);
  if (cut.in_bin == 0 || cut.bin + 1 >= kInfiniteBin) return low;
  const double left_out = 1 - static_cast<double>(cut.take) / static_cast<double>(cut.in_bin);
  return low + static_cast<float>(left_out) * (bin_edge(cut.bin + 1) - low);
}

bool BucketThreshold::is_exact(uint64_t step) const {
  return config_.period <= 1 || step % config_.period == 0 || !agreed_;
}

void BucketThreshold::begins_at(size_t local_part, uint64_t step) {
  MILLRACE_CHECK(local_part < config_.local_parts, local_part, config_.local_parts);
  begins_[local_part] = step;
}

SharedHistogram BucketThreshold::on_local(size_t local_part, uint64_t step, SharedHistogram histogram, TimeNs now) {
  MILLRACE_CHECK(local_part < config_.local_parts, local_part, config_.local_parts);
  if (agreed_ && agreed_->whole && agreed_->step >= step) return nullptr;  // summed again after the members changed
  Board& board = boards_[step];
  board.local.resize(config_.local_parts);
  board.local[local_part] = std::move(histogram);
  for (size_t other = 0; other < config_.local_parts; ++other) {
    if (begins_[other] > step && !board.local[other]) board.local[other] = std::make_shared<MagnitudeHistogram>();
  }
  if (std::ranges::any_of(board.local, [](const SharedHistogram& one) { return !one; })) return nullptr;
  if (config_.local_parts == 1) {
    board.own = board.local[0];
  } else {
    board.own = sum_of(board.local);
  }
  if (!board.waiting_since) board.waiting_since = now;
  SharedHistogram own = board.own;
  if (complete(board)) agree(step, board);
  return own;
}

BucketThreshold::Remote BucketThreshold::on_remote(uint32_t shard, uint64_t step, SharedHistogram histogram) {
  if (shard == config_.shard || !std::ranges::binary_search(config_.shards, shard)) return Remote::kUnknownShard;
  // A shard can be ahead by what staleness lets workers push past the slowest part, and one that it is about to decide.
  if (step > decided_below_ + config_.staleness + 2) return Remote::kAhead;
  if (agreed_ && agreed_->whole && step <= agreed_->step) return Remote::kLate;
  const bool settled = step + config_.staleness + 1 < decided_below_;
  if (settled) return Remote::kLate;
  Board& board = boards_[step];
  const bool late = board.given_up;
  board.remote[shard] = std::move(histogram);
  if (complete(board)) agree(step, board);
  return late ? Remote::kLate : Remote::kTaken;
}

SharedHistogram BucketThreshold::sum_of(std::span<const SharedHistogram> histograms) const {
  auto sum = std::make_shared<MagnitudeHistogram>();
  sum->add(histograms);
  return config_.account ? charged(std::move(sum), *config_.account) : std::move(sum);
}

void BucketThreshold::agree(uint64_t step, const Board& board) {
  if (agreed_ && agreed_->whole && agreed_->step > step) return;
  MagnitudeHistogram sum;
  std::vector<SharedHistogram> of_shards{board.own};
  for (const auto& [shard, histogram] : board.remote) of_shards.push_back(histogram);
  sum.add(of_shards);
  std::vector<uint64_t> in_bin;
  Agreed agreed;
  agreed.step = step;
  agreed.whole = complete(board);
  agreed.cut = histogram_threshold(sum, config_.k);
  size_t own_at = 0;
  for (const uint32_t shard : config_.shards) {
    if (shard == config_.shard) own_at = in_bin.size();
    const auto remote = board.remote.find(shard);
    const MagnitudeHistogram* histogram = shard == config_.shard         ? board.own.get()
                                          : remote == board.remote.end() ? nullptr
                                                                         : remote->second.get();
    in_bin.push_back(histogram ? histogram->count(agreed.cut.bin) : 0);
  }
  agreed.quota = split_take(agreed.cut.take, in_bin)[own_at];
  agreed.fraction =
      agreed.cut.in_bin == 0 ? 0 : static_cast<double>(agreed.cut.take) / static_cast<double>(agreed.cut.in_bin);
  for (const SharedHistogram& local : board.local) {
    agreed.expected.push_back(static_cast<double>(count_above(*local, agreed.cut.bin)) +
                              agreed.fraction * static_cast<double>(local->count(agreed.cut.bin)));
    agreed.expected_sum += agreed.expected.back();
  }
  agreed.cuts = sum.total() > config_.k;
  const bool whole = agreed.whole;
  agreed_ = std::make_shared<const Agreed>(std::move(agreed));
  set_level(board.own);
  if (whole) std::erase_if(boards_, [step](const auto& entry) { return entry.first <= step; });
}

std::optional<BucketThreshold::LocalThreshold> BucketThreshold::exact_threshold(uint64_t step) const {
  if (!agreed_ || !agreed_->whole || agreed_->step != step) return std::nullopt;
  return LocalThreshold{agreed_->cut.bin, agreed_->quota};
}

std::optional<TimeNs> BucketThreshold::deadline() const {
  std::optional<TimeNs> first;
  for (const auto& [step, board] : boards_) {
    if (!board.waiting_since || board.given_up || !is_exact(step)) continue;
    const TimeNs at = *board.waiting_since + config_.timeout_ns;
    if (!first || at < *first) first = at;
  }
  return first;
}

void BucketThreshold::extend_deadlines(TimeNs paused) {
  for (auto& [step, board] : boards_) {
    if (board.waiting_since) *board.waiting_since += paused;
  }
}

std::vector<uint64_t> BucketThreshold::expire(TimeNs now) {
  std::vector<uint64_t> steps;
  for (auto& [step, board] : boards_) {
    if (!board.waiting_since || board.given_up || !is_exact(step)) continue;
    if (*board.waiting_since + config_.timeout_ns > now) continue;
    board.given_up = true;
    steps.push_back(step);
  }
  for (const uint64_t step : steps) {
    if (!agreed_) agree(step, boards_.at(step));
  }
  return steps;
}

bool BucketThreshold::may_reuse(uint64_t step) const {
  if (!agreed_) return false;
  if (agreed_->step >= step || !is_exact(step)) return true;
  const auto board = boards_.find(step);
  return board != boards_.end() && board->second.given_up;
}

bool BucketThreshold::counts_magnitudes(uint64_t step) const {
  return is_exact(step) || step % kCountEvery == 0 || !agreed_->cuts;
}

void BucketThreshold::set_level(SharedHistogram own) {
  level_.own = std::move(own);
  level_.aim = 1;
  aim();
}

/// Sets edge and threshold by the aim, the spread and the histogram.
void BucketThreshold::aim() {
  const double aimed = level_.aim * agreed_->expected_sum;
  level_.threshold = magnitude_reached_by(*level_.own, aimed);
  level_.edge = level_.threshold;
  if (level_.spread < kTrustedSpread) return;
  // The lower edge of a bin: where many are equal, they are all there to choose from.
  const double margin = std::min(kSpreadMargin * level_.spread, kMarginMax);
  // One at least: of none the cut is above every magnitude.
  const uint64_t at_least = std::max<uint64_t>(rounded(aimed * (1 + margin)), 1);
  level_.edge = bin_edge(histogram_threshold(*level_.own, at_least).bin);
}

std::optional<FusedThreshold> BucketThreshold::fused_threshold(size_t local_part, uint64_t step) {
  if (!may_reuse(step) || counts_magnitudes(step) || agreed_->expected_sum == 0 || !(level_.edge > 0))
    return std::nullopt;
  const Band allowed = band(local_part, running(step));
  return FusedThreshold{level_.edge, level_.threshold, allowed.least, allowed.most};
}

BucketThreshold::Running& BucketThreshold::running(uint64_t step) {
  Running& running = running_[step];
  if (running.agreed) return running;
  running.shares.resize(config_.local_parts);
  running.reached.resize(config_.local_parts);
  running.counted.resize(config_.local_parts);
  running.agreed = agreed_;  // last: the others must have their size first
  return running;
}

void BucketThreshold::reached(size_t local_part, uint64_t step, uint64_t count) {
  Running& now = running(step);
  const bool first = !now.reached[local_part];
  now.reached[local_part] = count;
  if (!first || std::ranges::any_of(now.reached, [](const auto& one) { return !one; })) return;
  if (!(now.agreed->expected_sum > 0)) return;  // no sum is expected of this shard: there is no ratio
  double sum = 0;
  for (const std::optional<uint64_t>& one : now.reached) sum += static_cast<double>(*one);
  const double ratio = sum / now.agreed->expected_sum;
  level_.spread = std::max(std::min(std::fabs(ratio - 1), kMarginMax), kSpreadDecay * level_.spread);
  level_.aim *= std::pow(std::clamp(ratio, 1 / kMissMax, kMissMax), -kCorrection);
  level_.aim = std::clamp(level_.aim, 1 / kAimMax, kAimMax);
  aim();
}

void BucketThreshold::counted_again(size_t local_part, uint64_t step, SharedHistogram histogram) {
  Running& now = running(step);
  now.counted[local_part] = std::move(histogram);
  if (std::ranges::any_of(now.counted, [](const SharedHistogram& one) { return !one; })) return;
  set_level(sum_of(now.counted));
}

BucketThreshold::Band BucketThreshold::band(size_t local_part, const Running& running) const {
  const Agreed& agreed = *running.agreed;
  double expected = agreed.expected[local_part];
  uint64_t actual = 0;
  for (size_t part = 0; part < running.shares.size(); ++part) {
    const std::optional<uint64_t>& share = running.shares[part];
    if (!share || part == local_part) continue;
    expected += agreed.expected[part];
    actual += *share;
  }
  // The slack is of the whole share, for one part as for all: entries that one part has by chance too many, another
  // lacks.
  const double slack = kReuseBand * agreed.expected_sum;
  const uint64_t low = rounded(std::ceil(expected - slack - 0.5));
  const uint64_t high = std::max(low, rounded(std::floor(expected + slack + 0.5)));
  const uint64_t least = low > actual ? low - actual : 0;
  return {least, std::max(least, high > actual ? high - actual : 0)};
}

bool BucketThreshold::accept(size_t local_part, uint64_t step, uint64_t count) {
  Running& now = running(step);
  const Band allowed = band(local_part, now);
  if (count < allowed.least || count > allowed.most) return false;
  now.shares[local_part] = count;
  return true;
}

double BucketThreshold::wanted(const MagnitudeHistogram& histogram) const {
  return static_cast<double>(count_above(histogram, agreed_->cut.bin)) +
         agreed_->fraction * static_cast<double>(histogram.count(agreed_->cut.bin));
}

/// Returns how many of the entries at hand the part gets: the wanted number, within the band. They are counted.
uint64_t BucketThreshold::take(size_t local_part, Running& running, double wanted, uint64_t at_hand) const {
  const Band allowed = band(local_part, running);
  const uint64_t count = std::min(std::clamp(rounded(wanted), allowed.least, allowed.most), at_hand);
  running.shares[local_part] = count;
  return count;
}

PartThreshold BucketThreshold::reused_threshold(size_t local_part, uint64_t step, const MagnitudeHistogram& histogram) {
  MILLRACE_CHECK(agreed_ != nullptr && local_part < config_.local_parts, step, local_part);
  const HistogramThreshold cut =
      histogram_threshold(histogram, take(local_part, running(step), wanted(histogram), histogram.total()));
  return {cut.bin, cut.take};
}

std::optional<uint64_t> BucketThreshold::reuse_largest(size_t local_part, uint64_t step, uint64_t at_hand) {
  MILLRACE_CHECK(agreed_ != nullptr && local_part < config_.local_parts, step, local_part);
  Running& now = running(step);
  if (at_hand < band(local_part, now).least) return std::nullopt;
  // Below the edge nothing is known: the wanted number is the share, not the count at the agreed threshold.
  return take(local_part, now, now.agreed->expected[local_part], at_hand);
}

void BucketThreshold::decided_below(uint64_t step) {
  decided_below_ = std::max(decided_below_, step);
  std::erase_if(running_, [this](const auto& entry) { return entry.first < decided_below_; });
  // A background exchange may still complete a step or two after its parts were decided: that is where the next
  // threshold comes from.
  std::erase_if(boards_, [this](const auto& entry) { return entry.first + config_.staleness + 1 < decided_below_; });
}

std::vector<uint32_t> BucketThreshold::missing(uint64_t step) const {
  std::vector<uint32_t> shards;
  const auto board = boards_.find(step);
  if (board == boards_.end()) return shards;
  for (const uint32_t shard : config_.shards) {
    if (shard != config_.shard && !board->second.remote.contains(shard)) shards.push_back(shard);
  }
  return shards;
}

double BucketThreshold::agreed_magnitude() const {
  return agreed_ ? static_cast<double>(std::bit_cast<float>(agreed_->cut.bin << 16)) : 0;
}

}  // namespace millrace::server
