#include "kernels/codec/automatic/codec_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <tuple>

#include "kernels/base/check.h"
#include "kernels/codec/automatic/choice_sample.h"

namespace millrace {
namespace {

constexpr double kContainerBytes = 64;      // its header
constexpr double kWorthChanging = 0.95;     // of the present choice's time
constexpr uint32_t kLookEvery = 32;         // steps
constexpr double kMoved = 1.25;             // count or rate, up or down, is looked at
constexpr uint64_t kRateBytesMin = 65'536;  // of a sample
constexpr double kRateFall = 1.0 / 16;

/// Time a unit at a density: straight lines between the measured ones, both axes logarithmic. Below the least, the
/// lowest segment continues, between two limits: equal time for each index (0), or an equal total (-1).
double unit_ns(const WaySpeed& speed, double density) {
  const double at = std::log(std::clamp(density, 1e-10, 1.0));
  size_t upper = 1;
  while (upper + 1 < kSpeedDensities.size() && density > kSpeedDensities[upper]) ++upper;
  const double low = std::log(kSpeedDensities[upper - 1]);
  const double high = std::log(kSpeedDensities[upper]);
  const double low_ns = std::log(std::max(speed.unit_ns[upper - 1], 1e-6));
  const double high_ns = std::log(std::max(speed.unit_ns[upper], 1e-6));
  double slope = (high_ns - low_ns) / (high - low);
  if (at < low) slope = std::clamp(slope, -1.0, 0.0);
  return std::exp(low_ns + slope * (std::min(at, high) - low));
}

/// Returns the measured value at `units`, ascending; between them by the logarithmic axis, outside the nearest.
template <size_t kCount>
double between(const std::array<double, kCount>& values, const std::array<uint64_t, kCount>& units, double at) {
  size_t upper = 1;
  while (upper + 1 < kCount && at > static_cast<double>(units[upper])) ++upper;
  const double low = std::log(static_cast<double>(units[upper - 1]));
  const double high = std::log(static_cast<double>(units[upper]));
  const double share = std::clamp((std::log(std::max(at, 1.0)) - low) / (high - low), 0.0, 1.0);
  return std::lerp(values[upper - 1], values[upper], share);
}

/// The numbers of units in the streams that a form was measured with.
struct Measured {
  double units_of_entry = 1;
  std::array<uint64_t, 1 + kFarUnits.size()> places = {kNearUnits, kFarUnits[0], kFarUnits[1], kFarUnits[2]};
};
constexpr Measured kSparse{};
constexpr Measured kDense{double{kDenseUnitsPerUnit},
                          {kNearUnits * kDenseUnitsPerUnit, kFarUnits[0] * kDenseUnitsPerUnit,
                           kFarUnits[1] * kDenseUnitsPerUnit, kFarUnits[2] * kDenseUnitsPerFarthest}};

/// clustering      0 where indices are uniform, 1 where they cluster as those that were measured.
double way_ns(const WaySpeed& speed, double units, const Measured& measured, double density, double clustering) {
  const double at = units / measured.units_of_entry;
  const double far_ns = between<4>({0, speed.far_ns[0], speed.far_ns[1], speed.far_ns[2]}, measured.places, units);
  const double even = between(speed.fixed_ns, kFewUnits, at) + units * (unit_ns(speed, density) + far_ns);
  return even * std::lerp(1.0, between(speed.clustered, kClusteredUnits, at), clustering);
}

/// How much indices are like the clustered ones that were measured: neighbours, which they are where they are dense
/// enough.
double clustering_of(double gap_spread, double density) {
  const double spread = (gap_spread - 1) / (kClusteredSpread - 1);
  const double dense = 1 + std::log10(std::max(density, 1e-10) / kClusteredDensity);
  return std::clamp(spread, 0.0, 1.0) * std::clamp(dense, 0.0, 1.0);
}

/// Puts candidates with complete measurements before the others, then orders by time. Of equals the lower numbers come
/// first, so that there is one order.
bool comes_first(const CodecCandidate& a, const CodecCandidate& b) {
  const auto key = [](const CodecCandidate& one) {
    return std::tuple(!one.complete, one.total_ns, one.dense, one.value, one.index);
  };
  return key(a) < key(b);
}

/// All candidates for one stream.
class Contest {
 public:
  Contest(const StreamView& stream, const ChoiceInput& input)
      : input_(input),
        sample_(sample_stream(stream)),
        pieces_(std::max(input.pieces, 1u)),
        count_(static_cast<double>(sample_.count) / pieces_),
        dimension_(static_cast<double>(stream.dimension) / pieces_),
        density_(static_cast<double>(sample_.count) / static_cast<double>(stream.dimension)),
        gap_spread_(sample_.gap_spread()),
        clustering_(clustering_of(gap_spread_, density_)) {
    list(stream);
  }

  /// present  the choice so far, if any: always in full.
  CodecChoice run(const CodecCandidate* present) {
    double best = std::numeric_limits<double>::infinity();
    // The least bound first: an early good candidate excludes the others.
    std::ranges::sort(candidates_, comes_first);
    for (CodecCandidate& candidate : candidates_) {
      const bool wanted = input_.detail == Detail::kEverything || (present && candidate.codes_as(*present));
      if (!candidate.complete && (candidate.total_ns < best || wanted)) complete(candidate);
      if (candidate.complete) best = std::min(best, candidate.total_ns);
    }
    std::erase_if(candidates_, [](const CodecCandidate& one) { return !std::isfinite(one.total_ns); });
    std::ranges::sort(candidates_, comes_first);
    MILLRACE_CHECK(candidates_.empty() || candidates_.front().complete, candidates_.size());
    CodecChoice choice;
    choice.chosen = candidates_.empty() ? default_candidate() : candidates_.front();
    choice.candidates = std::move(candidates_);
    choice.density = density_;
    choice.link_bits_per_s = input_.link_bits_per_s;
    choice.count = sample_.count;
    choice.gap_spread = gap_spread_;
    return choice;
  }

 private:
  CodecCandidate default_candidate() const {
    return {
        .index = input_.spec.index, .value = input_.spec.value, .total_ns = std::numeric_limits<double>::infinity()};
  }

  void list(const StreamView& stream) {
    const bool as_it_is = input_.form == CodedForm::kAsItIs;
    std::vector<ValueCodecId> values;
    if (input_.spec.value != ValueCodecId::kRaw) {
      values = {input_.spec.value};
    } else {
      for (const CodecSpeeds::Value& row : input_.speeds->value) {
        const ValueCodec* codec = find_value_codec(row.codec);
        if (codec != nullptr && codec->lossless(with_value(row.codec))) values.push_back(row.codec);
      }
    }
    for (const ValueCodecId value : values) {
      for (const CodecSpeeds::Index& row : input_.speeds->index) {
        const IndexCodec* codec = find_index_codec(row.codec);
        if (codec == nullptr || !codec->lossless() || stream.dimension > codec->dimension_max()) continue;
        if (as_it_is && stream.dense) continue;
        add({.index = row.codec, .value = value}, row.speed);
      }
      const bool may_be_dense = !as_it_is && find_value_codec(value)->lossless(with_value(value));
      if (stream.dense || may_be_dense) {
        add({.dense = true, .value = value}, input_.speeds->dense);
      }
    }
  }

  /// With the time that coding takes, and the bytes that are known without the data.
  void add(CodecCandidate candidate, const CodingSpeed& speed) {
    const double units = candidate.dense ? dimension_ : count_;
    const Measured& measured = candidate.dense ? kDense : kSparse;
    candidate.encode_ns = way_ns(speed.encode, units, measured, density_, clustering_);
    candidate.decode_ns = way_ns(speed.decode, units, measured, density_, clustering_);
    for (const CodecSpeeds::Value& row : input_.speeds->value) {
      if (row.codec != candidate.value) continue;
      candidate.encode_ns += row.encode.at(units);
      candidate.decode_ns += row.decode.at(units);
    }
    candidate.bytes = kContainerBytes;
    if (candidate.value == ValueCodecId::kRaw) candidate.bytes += units * sizeof(float);
    // What needs no sample is shown even where it has no chance: dense above all.
    candidate.complete = candidate.dense && candidate.value == ValueCodecId::kRaw;
    add_up(candidate);
    candidates_.push_back(candidate);
  }

  /// The pieces follow each other through three stages: the first one takes all of them, each other one the slowest.
  void add_up(CodecCandidate& candidate) const {
    candidate.wire_ns = candidate.bytes * 8e9 / input_.link_bits_per_s * input_.copies;
    const double slowest = std::max({candidate.encode_ns, candidate.wire_ns, candidate.decode_ns});
    candidate.total_ns =
        candidate.encode_ns + candidate.wire_ns + candidate.decode_ns + static_cast<double>(pieces_ - 1) * slowest;
  }

  void complete(CodecCandidate& candidate) {
    std::optional<double> index_bytes = 0;
    if (!candidate.dense) index_bytes = index_bytes_of(candidate.index);
    const std::optional<double> value_bytes = value_bytes_of(candidate);
    candidate.complete = true;
    if (!index_bytes || !value_bytes) {  // its codec refuses such a stream
      candidate.total_ns = std::numeric_limits<double>::infinity();
      return;
    }
    candidate.bytes = kContainerBytes + *index_bytes + *value_bytes;
    add_up(candidate);
  }

  CodecSpec with_value(ValueCodecId value) const {
    CodecSpec spec = input_.spec;
    spec.automatic = false;
    spec.value = value;
    return spec;
  }

  /// Returns the ratio of the expected to the sampled number of entries. A few pieces of a stream whose entries cluster
  /// have more or fewer entries than their share. Entries are most of a code's bytes.
  double share_of_entries(std::span<const float> dense) const {
    const auto seen = static_cast<double>(dense.size()) - static_cast<double>(std::ranges::count(dense, 0.0F));
    return std::clamp(static_cast<double>(dense.size()) * density_ / std::max(seen, 1.0), 0.25, 4.0);
  }

  double share_of_sample() const { return count_ / static_cast<double>(sample_.indices.size()); }

  std::optional<double> index_bytes_of(IndexCodecId id) {
    for (const auto& [known, bytes] : index_bytes_) {
      if (known == id) return bytes;
    }
    const IndexCodec& codec = *find_index_codec(id);
    std::optional<double> bytes;
    if (id == IndexCodecId::kRaw || id == IndexCodecId::kBitmap) {  // for any indices
      bytes = static_cast<double>(codec.bytes_estimate(static_cast<uint64_t>(std::ceil(count_)),
                                                       static_cast<uint64_t>(std::ceil(dimension_)), input_.spec));
    } else {
      EncodeOptions options;
      options.spec.index = id;
      code_.clear();
      if (codec.encode(sample_.indices, sample_.dimension, options, code_, nullptr)) {
        bytes = static_cast<double>(code_.size()) * share_of_sample();
      }
    }
    index_bytes_.emplace_back(id, bytes);
    return bytes;
  }

  std::optional<double> value_bytes_of(const CodecCandidate& candidate) {
    if (candidate.value == ValueCodecId::kRaw) return (candidate.dense ? dimension_ : count_) * sizeof(float);
    auto& known = candidate.dense ? dense_value_bytes_ : value_bytes_;
    for (const auto& [id, bytes] : known) {
      if (id == candidate.value) return bytes;
    }
    const EncodeOptions options{with_value(candidate.value), RandomKey{}, 0};
    const Buffer<float> dense = candidate.dense ? sample_.dense_values() : Buffer<float>();
    const std::span<const float> values = candidate.dense ? dense : sample_.values;
    const IndexSpan indices = candidate.dense ? IndexSpan() : IndexSpan(sample_.indices);
    const ValueCodec& codec = *find_value_codec(candidate.value);
    Buffer<float> decoded(codec.lossless(options.spec) ? 0 : values.size());
    code_.clear();
    std::optional<double> bytes;
    if (codec.encode(indices, values, options, code_, std::span<float>(decoded))) {
      bytes = static_cast<double>(code_.size()) * (candidate.dense ? dimension_ * share_of_entries(dense) : count_) /
              static_cast<double>(values.size());
    }
    known.emplace_back(candidate.value, bytes);
    return bytes;
  }

  const ChoiceInput& input_;
  StreamSample sample_;
  uint32_t pieces_;
  double count_;  ///< with the next one, of a piece
  double dimension_;
  double density_;
  double gap_spread_;
  double clustering_;  ///< of way_ns()
  std::vector<CodecCandidate> candidates_;
  std::vector<std::pair<IndexCodecId, std::optional<double>>> index_bytes_;
  std::vector<std::pair<ValueCodecId, std::optional<double>>> value_bytes_;
  std::vector<std::pair<ValueCodecId, std::optional<double>>> dense_value_bytes_;
  ByteBuffer code_;
};

}  // namespace

CodecChoice choose_codecs(const StreamView& stream, const ChoiceInput& input) {
  MILLRACE_CHECK(input.speeds != nullptr && input.link_bits_per_s > 0 && stream.count() > 0, input.link_bits_per_s,
                 stream.count());
  return Contest(stream, input).run(nullptr);
}

bool CodecChooser::is_due(uint64_t count, double rate) const {
  const auto moved = [](double before, double now) { return now > before * kMoved || now < before / kMoved; };
  return !choice_ || steps_since_ >= kLookEvery || moved(choice_->link_bits_per_s, rate) ||
         moved(static_cast<double>(choice_->count), static_cast<double>(count));
}

bool CodecChooser::choose(const StreamView& stream, const ChoiceInput& input) {
  // Of a dense stream the values that are not zero count; they are counted at intervals of steps.
  const uint64_t count = stream.dense && choice_ ? choice_->count : stream.count();
  if (stream.count() == 0) return false;
  ++steps_since_;
  if (!is_due(count, input.link_bits_per_s)) return false;
  steps_since_ = 0;
  const CodecCandidate* const present = choice_ ? &choice_->chosen : nullptr;
  CodecChoice next = Contest(stream, input).run(present);
  if (next.candidates.empty()) return false;  // the code of the stream will be the codec's error
  bool changes = true;
  if (present != nullptr) {
    const auto again = std::ranges::find_if(
        next.candidates, [&](const CodecCandidate& one) { return one.complete && one.codes_as(*present); });
    const bool may_stay = again != next.candidates.end();
    if (may_stay && next.chosen.total_ns > again->total_ns * kWorthChanging) next.chosen = *again;
    changes = !next.chosen.codes_as(*present);
  }
  choice_ = std::make_shared<const CodecChoice>(std::move(next));
  changes_ += changes ? 1 : 0;
  return changes;
}

CodecSpec CodecChooser::resolved(const CodecSpec& spec) const {
  CodecSpec codecs = spec;
  codecs.automatic = false;
  if (!choice_) return codecs;
  if (!choice_->chosen.dense) codecs.index = choice_->chosen.index;
  codecs.value = choice_->chosen.value;
  return codecs;
}

std::optional<Stream> CodecChooser::formed(const StreamView& stream, CodedForm form) const {
  if (!choice_ || form == CodedForm::kAsItIs || choice_->chosen.dense == stream.dense) return std::nullopt;
  if (stream.dense) return to_sparse(stream);
  CodecSpec spec;
  spec.value = choice_->chosen.value;
  const bool stays = find_value_codec(spec.value)->lossless(spec);
  return stays && stream.count() > 0 ? std::optional(to_dense(stream)) : std::nullopt;
}

void LinkRate::moved(uint64_t bytes, int64_t ns) {
  if (bytes < kRateBytesMin || ns <= 0) return;
  const double sample = static_cast<double>(bytes) * 8e9 / static_cast<double>(ns);
  measured_ = std::max(sample, measured_ + (sample - measured_) * kRateFall);
}

double LinkRate::bits_per_s() const {
  if (stated_ > 0) return stated_;
  return measured_ > 0 ? measured_ : kLinkRateUnknown;
}

}  // namespace millrace
