#include "worker/bench/rounds/serve_oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "kernels/reduce/magnitude_histogram.h"
#include "worker/bench/rounds/serve_input.h"

namespace millrace::bench {
namespace {

/// server/aggregation/bucket_threshold.cc: the band of a reuse step, and how often such a step counts magnitudes.
constexpr double kReuseBand = 0.02;
constexpr double kHalfEntry = 0.5;
constexpr uint32_t kCountEvery = 8;

/// An agreement is of the round before as a rule. So far back, all exchanges since must have failed.
constexpr uint32_t kRoundsBackMax = 64;

/// Shares are sums of fractions in f64.
constexpr double kRounding = 1e-6;

/// Holds the sum of a round, and the same without a codec: of the same indices.
struct Round {
  Stream sum;
  Buffer<float> before_codec;
};

/// Does the codec change values?
bool is_lossy(const ServeJob& job) { return !find_value_codec(job.codec.value)->lossless(job.codec); }

/// The values of `input` as the servers decode them.
Buffer<float> decoded_values(const ServeJob& job, const Stream& input, uint32_t worker, uint32_t round) {
  Buffer<float> values = input.values;
  if (!is_lossy(job)) return values;
  ByteBuffer code;
  for (uint32_t part = 0; part < job.parts.size(); ++part) {
    const auto [first, last] = range_of(input.indices, job.parts[part].begin, job.parts[part].end);
    EncodeOptions options;  // as worker/core/ codes a part
    options.spec = job.codec;
    options.random = random_key(job.seed, part, round, worker);
    options.index_base = job.parts[part].begin;
    const Status done = find_value_codec(job.codec.value)
                            ->encode({}, std::span(input.values).subspan(first, last - first), options, code,
                                     std::span(values).subspan(first, last - first));
    MILLRACE_CHECK(done.has_value(), part);
  }
  return values;
}

/// `round` plus the next worker's input: ((a + b) + c), as the servers add.
Round with_input(const Round& round, const Stream& input, const Buffer<float>& decoded) {
  Round next{Stream::empty(input.dimension), {}};
  const IndexBuffer& old = round.sum.indices;
  next.sum.indices.reserve(old.size() + input.indices.size());
  next.sum.values.reserve(old.size() + input.indices.size());
  next.before_codec.reserve(old.size() + input.indices.size());
  size_t at = 0;
  size_t in = 0;
  while (at < old.size() || in < input.indices.size()) {
    const bool has_old = at < old.size() && (in == input.indices.size() || old[at] <= input.indices[in]);
    const bool has_new = in < input.indices.size() && (!has_old || old[at] == input.indices[in]);
    next.sum.indices.push_back(has_old ? old[at] : input.indices[in]);
    if (has_old && has_new) {
      next.sum.values.push_back(round.sum.values[at] + decoded[in]);
      next.before_codec.push_back(round.before_codec[at] + input.values[in]);
    } else {
      next.sum.values.push_back(has_old ? round.sum.values[at] : decoded[in]);
      next.before_codec.push_back(has_old ? round.before_codec[at] : input.values[in]);
    }
    at += has_old ? 1 : 0;
    in += has_new ? 1 : 0;
  }
  return next;
}

Round round_of(const ServeJob& job, uint32_t round) {
  Round sum{Stream::empty(job.n), {}};
  for (uint32_t worker = 0; worker < job.workers; ++worker) {
    const Stream input = serve_input(job.n, job.pushed, job.seed, worker, round);
    sum = with_input(sum, input, decoded_values(job, input, worker, round));
  }
  return sum;
}

uint64_t non_zeros(const Stream& sum) {
  return static_cast<uint64_t>(std::ranges::count_if(sum.values, [](float value) { return value != 0; }));
}

std::vector<MagnitudeHistogram> magnitudes_of(const ServeJob& job, const Stream& sum) {
  std::vector<MagnitudeHistogram> by_part(job.parts.size());
  for (size_t part = 0; part < job.parts.size(); ++part) {
    const auto [first, last] = range_of(sum.indices, job.parts[part].begin, job.parts[part].end);
    by_part[part].add(std::span<const float>(sum.values).subspan(first, last - first));
  }
  return by_part;
}

struct Entry {
  float magnitude = 0;
  uint64_t index = 0;
};

/// Returns whether `a` is selected before `b`: the larger, then the one of lower index.
bool goes_first(const Entry& a, const Entry& b) {
  return a.magnitude != b.magnitude ? a.magnitude > b.magnitude : a.index < b.index;
}

/// Counts the entries in a part, or a shard, and those of them in the update.
struct Seen {
  uint64_t entries = 0;
  uint64_t carried = 0;
  std::optional<Entry> last_carried;
  std::optional<Entry> first_left_out;

  void add(const Entry& entry, bool is_carried) {
    ++entries;
    carried += is_carried ? 1 : 0;
    std::optional<Entry>& edge = is_carried ? last_carried : first_left_out;
    if (!edge || (is_carried ? goes_first(*edge, entry) : goes_first(entry, *edge))) edge = entry;
  }
  void add(const Seen& other) {
    entries += other.entries;
    carried += other.carried;
    if (other.last_carried && (!last_carried || goes_first(*last_carried, *other.last_carried)))
      last_carried = other.last_carried;
    if (other.first_left_out && (!first_left_out || goes_first(*other.first_left_out, *first_left_out)))
      first_left_out = other.first_left_out;
  }
  bool has_the_largest() const {
    return !last_carried || !first_left_out || goes_first(*last_carried, *first_left_out);
  }
};

struct Comparison {
  std::vector<Seen> parts;
  double relative_error = 0;
  std::string fault;  ///< an entry that cannot be; empty: none
};

Comparison compare(const ServeJob& job, const Round& round, const StreamView& update) {
  Comparison found;
  found.parts.resize(job.parts.size());
  double error = 0;
  double norm = 0;
  size_t part = 0;
  size_t at = 0;
  for (size_t i = 0; i < round.sum.indices.size(); ++i) {
    const uint32_t index = round.sum.indices[i];
    const float sum = round.sum.values[i];
    const bool is_carried = at < update.indices.size() && update.indices[at] == index;
    while (index >= job.parts[part].end) ++part;
    if (sum != 0) found.parts[part].add({std::fabs(sum), index}, is_carried);
    if (!is_carried) continue;
    const float value = update.values[at++];
    if (sum == 0 || (!is_lossy(job) && value != sum)) {
      found.fault = fmt::format("index {} carries {}, the sum is {}", index, value, sum);
      return found;
    }
    error += std::pow(static_cast<double>(value) - round.before_codec[i], 2);
    norm += std::pow(static_cast<double>(round.before_codec[i]), 2);
  }
  if (at != update.indices.size())
    found.fault = fmt::format("index {} of the update was pushed by no worker", update.indices[at]);
  found.relative_error = norm > 0 ? std::sqrt(error / norm) : 0;
  return found;
}

/// Compares the counts with the entries that the servers may have selected. Each rule returns the fault; empty: none.
class Judge {
 public:
  Judge(const ServeJob& job, uint32_t round, const Stream& sum, const std::vector<Seen>& parts)
      : job_(job), round_(round), parts_(parts) {
    for (size_t part = 0; part < job.parts.size(); ++part) {
      Shard& shard = shards_[job.parts[part].shard];
      shard.seen.add(parts[part]);
      shard.parts.push_back(part);
      all_.add(parts[part]);
    }
    shares_[round] = {serve_shares(job, sum), all_.entries > job.k};
  }

  bool is_exact() const { return is_exact(round_); }

  std::string exact_step() const {
    const uint64_t size = std::min(job_.k, all_.entries);
    if (all_.carried != size) return fmt::format("the update has {} entries, not {}", all_.carried, size);
    for (const auto& [number, shard] : shards_) {
      if (!shard.seen.has_the_largest()) return left_out(fmt::format("shard {}", number), shard.seen);
      const double share = share_of(shard, shares_.at(round_).by_part);
      if (std::fabs(static_cast<double>(shard.seen.carried) - share) >= 1 + kRounding)
        return fmt::format("shard {} carries {} entries, its share is {:.1f}", number, shard.seen.carried, share);
    }
    return {};
  }

  std::string reuse_step() {
    for (size_t part = 0; part < parts_.size(); ++part) {
      if (!parts_[part].has_the_largest()) return left_out(fmt::format("part {}", part), parts_[part]);
    }
    for (const auto& [number, shard] : shards_) {
      std::string tried;
      if (!is_explained(shard, tried)) {
        return fmt::format("shard {} carries {} entries; its share by the rounds whose threshold it may have had: {}",
                           number, shard.seen.carried, tried);
      }
    }
    return {};
  }

 private:
  struct Shard {
    Seen seen;
    std::vector<size_t> parts;
  };
  struct Shares {
    std::vector<double> by_part;
    bool cuts = false;  ///< there was more than an update may carry
  };

  bool is_exact(uint32_t round) const { return round % job_.threshold_period == 0; }

  static std::string left_out(const std::string& where, const Seen& seen) {
    return fmt::format("{} carries index {}, {}, but not index {}, {}", where, seen.last_carried->index,
                       seen.last_carried->magnitude, seen.first_left_out->index, seen.first_left_out->magnitude);
  }

  static double share_of(const Shard& shard, std::span<const double> shares) {
    double sum = 0;
    for (const size_t part : shard.parts) sum += shares[part];
    return sum;
  }

  const Shares& shares(uint32_t round) {
    const auto known = shares_.find(round);
    if (known != shares_.end()) return known->second;
    const Stream sum = serve_sum(job_, round);
    return shares_[round] = {serve_shares(job_, sum), non_zeros(sum) > job_.k};
  }

  /// May the shards have counted magnitudes in `round`? Every step does after an agreement in which nothing was cut,
  /// and that may have taken a round to arrive.
  bool may_agree_out_of_order(uint32_t round) {
    for (uint32_t back = 1; back <= 2 && back <= round; ++back) {
      if (!shares(round - back).cuts) return true;
    }
    return false;
  }

  /// Does an agreement explain the counts of the shard? The likely rounds first: the newest.
  bool is_explained(const Shard& shard, std::string& tried) {
    const uint32_t exact = round_ - round_ % job_.threshold_period;
    const uint32_t first = std::max(exact, round_ - std::min(round_, kRoundsBackMax));
    for (const bool in_order : {true, false}) {
      for (uint32_t round = round_ + 1; round-- > first;) {
        if ((is_exact(round) || round % kCountEvery == 0) != in_order) continue;
        if (!in_order && !may_agree_out_of_order(round)) continue;
        const std::vector<double>& by_part = shares(round).by_part;
        if (follows(shard, by_part)) return true;
        tried += fmt::format("{}{:.1f} ({})", tried.empty() ? "" : ", ", share_of(shard, by_part), round);
      }
    }
    return false;
  }

  /// The server selects part after part, in any order, so that the count so far stays in the band around the share so
  /// far. Later parts make up for a part's missing entries; after the last one that had enough, no part can.
  bool follows(const Shard& shard, std::span<const double> shares) const {
    const double slack = kReuseBand * share_of(shard, shares) + kHalfEntry + kRounding;
    double lacking = 0;
    for (const size_t part : shard.parts) {
      const Seen& seen = parts_[part];
      if (seen.carried == seen.entries) lacking += std::max(0.0, shares[part] - static_cast<double>(seen.entries));
    }
    const double over = static_cast<double>(shard.seen.carried) - share_of(shard, shares);
    if (over > slack || over < -slack - lacking) return false;
    return std::ranges::all_of(shard.parts, [&](size_t part) {
      const Seen& seen = parts_[part];
      const double part_over = static_cast<double>(seen.carried) - shares[part];
      return part_over <= 2 * slack + lacking && (part_over >= -2 * slack || seen.carried == seen.entries);
    });
  }

  const ServeJob& job_;
  uint32_t round_;
  const std::vector<Seen>& parts_;
  std::map<uint32_t, Shard> shards_;
  std::map<uint32_t, Shares> shares_;  ///< by round
  Seen all_;
};

}  // namespace

Stream serve_sum(const ServeJob& job, uint32_t round) { return round_of(job, round).sum; }

std::vector<double> serve_shares(const ServeJob& job, const Stream& sum) {
  const std::vector<MagnitudeHistogram> by_part = magnitudes_of(job, sum);
  MagnitudeHistogram all;
  for (const MagnitudeHistogram& one : by_part) all.add(one);
  const HistogramThreshold cut = histogram_threshold(all, job.k);
  const double taken = cut.in_bin == 0 ? 0 : static_cast<double>(cut.take) / static_cast<double>(cut.in_bin);
  std::vector<double> shares;
  for (const MagnitudeHistogram& one : by_part) {
    uint64_t above = 0;
    for (const MagnitudeHistogram::Bin& at : one.bins()) above += at.bin > cut.bin ? at.count : 0;
    shares.push_back(static_cast<double>(above) + taken * static_cast<double>(one.count(cut.bin)));
  }
  return shares;
}

ServeVerdict judge_update(const ServeJob& job, uint32_t round, const StreamView& update) {
  MILLRACE_CHECK(!update.dense && update.dimension == job.n, update.dimension, job.n);
  const Round known = round_of(job, round);
  const Comparison found = compare(job, known, update);
  ServeVerdict verdict{false, found.relative_error, found.fault};
  if (!verdict.reason.empty()) return verdict;
  Judge judge(job, round, known.sum, found.parts);
  verdict.reason = judge.is_exact() ? judge.exact_step() : judge.reuse_step();
  if (verdict.reason.empty() && is_lossy(job) && !(verdict.relative_error <= job.error_max))
    verdict.reason = fmt::format("relative error {} over {}", verdict.relative_error, job.error_max);
  verdict.agrees = verdict.reason.empty();
  return verdict;
}

}  // namespace millrace::bench
