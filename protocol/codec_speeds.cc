#include "protocol/codec_speeds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "protocol/container.h"

namespace millrace {
namespace {

constexpr uint64_t kSmallUnits = 8;  // what these take is mostly what any stream takes
constexpr int kPasses = 2;           // over all streams: what else the machine does comes and goes
constexpr int kRepeats = 3;          // a pass, of which the best counts, after one that takes the memory
constexpr int kSmallRepeats = 12;
constexpr int kFarRepeats = 2;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kFarDensity = 2;      // of kSpeedDensities
constexpr double kFarSlowestNs = 8.0;  // a unit, both ways: what takes longer does not wait for memory

/// Nanoseconds, both ways.
struct Times {
  double encode = kNever;
  double decode = kNever;
};

Stream<float> uniform_stream(uint64_t count, double density) {
  RandomSequence random(RandomKey::from(1));
  Stream<float> stream;
  stream.indices.reserve(count);
  stream.values.reserve(count);
  const double scale = 1.0 / std::log1p(-density);
  double at = -1;
  for (uint64_t i = 0; i < count; ++i) {
    at += 1.0 + std::floor(std::log(1.0 - random.next_unit()) * scale);
    stream.indices.push_back(static_cast<uint32_t>(at));
    stream.values.push_back(static_cast<float>(random.next_normal()));
  }
  stream.dimension = static_cast<uint64_t>(at) + 1;
  return stream;
}

/// What all forms are measured with.
struct Streams {
  std::vector<Stream<float>> near;  ///< at kSpeedDensities
  Stream<float> small = uniform_stream(kSmallUnits, kSpeedDensities[kFarDensity]);
  Stream<float> far = uniform_stream(kFarUnits, kSpeedDensities[kFarDensity]);

  Streams() {
    for (const double density : kSpeedDensities) near.push_back(uniform_stream(kNearUnits, density));
  }
};

Result<SharedBytes> coded(const StreamView<float>& stream, const CodecCandidate& candidate, const CodecSpec& spec) {
  EncodeOptions options{spec, RandomKey{}, 0};
  options.spec.automatic = false;
  options.spec.value = candidate.value;
  if (candidate.dense) {
    auto container = encode_container<float>(to_dense(stream).view(), {}, options);
    if (!container) return std::unexpected(container.error());
    return SharedBytes::from(std::move(container->bytes));
  }
  options.spec.index = candidate.index;
  const bool plain = candidate.index == IndexCodecId::kRaw && candidate.value == ValueCodecId::kRaw;
  if (plain) return plain_container(stream, 0, stream.dimension).bytes;
  auto container = encode_container<float>(stream, {}, options);
  if (!container) return std::unexpected(container.error());
  return SharedBytes::from(std::move(container->bytes));
}

/// Best times of every form, by its place; kNone: dense. The forms take turns, so that each one meets caches and branch
/// predictors that the others have used: a step codes a stream once, and does much else before the next one.
std::vector<Times> times_of(std::span<const IndexCodecId> forms, const Stream<float>& stream, int repeats) {
  std::vector<Times> best(forms.size());
  for (int run = 0; run <= repeats; ++run) {
    for (size_t at = 0; at < forms.size(); ++at) {
      const CodecCandidate candidate{.dense = forms[at] == IndexCodecId::kNone, .index = forms[at]};
      const Result<CodingTimes> times = time_coding(stream.view(), candidate, {});
      MILLRACE_CHECK(times.has_value(), static_cast<int>(forms[at]));  // lossless ones refuse nothing here
      if (run == 0) continue;
      best[at].encode = std::min(best[at].encode, times->encode_ns);
      best[at].decode = std::min(best[at].decode, times->decode_ns);
    }
  }
  return best;
}

/// What one way of one form took at best, of all streams, in nanoseconds; kNever: not measured.
struct WayTimes {
  std::array<double, kSpeedDensities.size()> near = {kNever, kNever, kNever, kNever};
  double small = kNever;
  double far = kNever;
};

WaySpeed speed_of(const WayTimes& times, bool dense) {
  const double units_of_entry = dense ? static_cast<double>(kDenseUnitsPerUnit) : 1.0;
  const double near = static_cast<double>(kNearUnits) * units_of_entry;
  const double small = static_cast<double>(kSmallUnits) * units_of_entry;
  WaySpeed speed;
  for (size_t at = 0; at < kSpeedDensities.size(); ++at) {
    // A dense code was measured where it is of interest, and takes as long a value elsewhere.
    const size_t from = dense ? std::max(at, kFarDensity) : at;
    const double units = near * (dense ? kSpeedDensities[kFarDensity] / kSpeedDensities[from] : 1.0);
    speed.unit_ns[at] = times.near[from] / units;
  }
  // What any stream takes is out of the time of a unit.
  speed.fixed_ns = std::max(times.small - small * speed.unit_ns[kFarDensity], 0.0);
  for (double& unit : speed.unit_ns) unit = std::max(unit - speed.fixed_ns / near, unit / 2);
  const double far = static_cast<double>(kFarUnits) * units_of_entry;
  if (times.far < kNever) speed.far_ns = std::max((times.far - speed.fixed_ns) / far - speed.unit_ns[kFarDensity], 0.0);
  return speed;
}

/// All of all forms.
std::vector<CodingSpeed> form_speeds(const std::vector<IndexCodecId>& forms, const Streams& streams) {
  std::vector<WayTimes> encode(forms.size());
  std::vector<WayTimes> decode(forms.size());
  const auto measure = [&](std::span<const IndexCodecId> of, const Stream<float>& stream, int repeats, auto place) {
    const std::vector<Times> times = times_of(of, stream, repeats);
    for (size_t at = 0; at < of.size(); ++at) {
      const auto form = static_cast<size_t>(std::ranges::find(forms, of[at]) - forms.begin());
      place(encode[form]) = std::min(place(encode[form]), times[at].encode);
      place(decode[form]) = std::min(place(decode[form]), times[at].decode);
    }
  };
  std::vector<IndexCodecId> sparse = forms;
  std::erase(sparse, IndexCodecId::kNone);
  std::vector<IndexCodecId> quick;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (size_t density = 0; density < kSpeedDensities.size(); ++density) {
      measure(density < kFarDensity ? sparse : forms, streams.near[density], kRepeats,
              [density](WayTimes& way) -> double& { return way.near[density]; });
    }
    measure(forms, streams.small, kSmallRepeats, [](WayTimes& way) -> double& { return way.small; });
    for (size_t at = 0; at < forms.size() && pass == 0; ++at) {
      const double unit_ns = (encode[at].near[kFarDensity] + decode[at].near[kFarDensity]) / double{kNearUnits};
      if (forms[at] == IndexCodecId::kNone || unit_ns < kFarSlowestNs) quick.push_back(forms[at]);
    }
    measure(quick, streams.far, kFarRepeats, [](WayTimes& way) -> double& { return way.far; });
  }
  std::vector<CodingSpeed> speeds;
  for (size_t at = 0; at < forms.size(); ++at) {
    const bool dense = forms[at] == IndexCodecId::kNone;
    speeds.push_back({speed_of(encode[at], dense), speed_of(decode[at], dense)});
  }
  return speeds;
}

/// Nothing where the codec refuses such values.
std::optional<Times> value_times(const ValueCodec& codec, const Stream<float>& stream, int repeats) {
  EncodeOptions options;
  options.spec.value = codec.id();
  Buffer<float> said(codec.lossless(options.spec) ? 0 : stream.values.size());
  Buffer<float> decoded(stream.values.size());
  ByteBuffer bytes;
  const std::span<const float> values = stream.values;
  Times best;
  for (int run = 0; run <= repeats; ++run) {
    bytes.clear();
    const TimeNs start = monotonic_now_ns();
    if (!codec.encode(stream.indices, values, options, bytes, std::span<float>(said))) return std::nullopt;
    const TimeNs between = monotonic_now_ns();
    if (!codec.decode(bytes, stream.indices, std::span<float>(decoded))) return std::nullopt;
    best.encode = std::min(best.encode, static_cast<double>(between - start));
    best.decode = std::min(best.decode, static_cast<double>(monotonic_now_ns() - between));
  }
  return best;
}

/// What any number of values takes, and each one, from what few and many took.
std::pair<double, double> line_of(double small, double near) {
  const double unit = std::max(near - small, 0.0) / static_cast<double>(kNearUnits - kSmallUnits);
  return {std::max(small - static_cast<double>(kSmallUnits) * unit, 0.0), unit};
}

}  // namespace

Result<CodingTimes> time_coding(const StreamView<float>& stream, const CodecCandidate& candidate,
                                const CodecSpec& spec) {
  const TimeNs start = monotonic_now_ns();
  const Result<SharedBytes> bytes = coded(stream, candidate, spec);
  const TimeNs between = monotonic_now_ns();
  if (!bytes) return std::unexpected(bytes.error());
  ContainerLimits limits;
  limits.dimension = stream.dimension;
  const auto held = hold_container<float>(*bytes, limits);
  const TimeNs end = monotonic_now_ns();
  if (!held) return std::unexpected(held.error());
  return CodingTimes{static_cast<double>(between - start), static_cast<double>(end - between), bytes->bytes.size()};
}

CodecSpeeds measure_speeds() {
  CodecSpeeds speeds;
  const Streams streams;
  const Stream<float>& values_of = streams.near[kFarDensity];
  std::vector<IndexCodecId> forms;
  for (const IndexCodec* codec : index_codecs()) {
    if (codec->lossless()) forms.push_back(codec->id());
  }
  forms.push_back(IndexCodecId::kNone);
  const std::vector<CodingSpeed> measured = form_speeds(forms, streams);
  for (size_t at = 0; at + 1 < forms.size(); ++at) speeds.index.push_back({forms[at], measured[at]});
  speeds.dense = measured.back();
  const ValueCodec& raw = *find_value_codec(ValueCodecId::kRaw);
  const std::optional<Times> raw_near = value_times(raw, values_of, kRepeats);
  const std::optional<Times> raw_small = value_times(raw, streams.small, kSmallRepeats);
  MILLRACE_CHECK(raw_near && raw_small);
  for (const ValueCodec* codec : value_codecs()) {
    const std::optional<Times> near = value_times(*codec, values_of, kRepeats);
    const std::optional<Times> small = value_times(*codec, streams.small, kSmallRepeats);
    if (!near || !small) continue;
    const auto [encode_fixed, encode] = line_of(small->encode - raw_small->encode, near->encode - raw_near->encode);
    const auto [decode_fixed, decode] = line_of(small->decode - raw_small->decode, near->decode - raw_near->decode);
    speeds.value.push_back({codec->id(), encode, decode, encode_fixed, decode_fixed});
  }
  return speeds;
}

const CodecSpeeds& measured_speeds() {
  static const CodecSpeeds speeds = measure_speeds();
  return speeds;
}

}  // namespace millrace
