#include "protocol/container/codec_speeds.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "protocol/container/container.h"

namespace millrace {
namespace {

constexpr int kPasses = 2;   // over all streams: what else the machine does comes and goes
constexpr int kRepeats = 3;  // a pass, of which the best counts, after one that takes the memory
constexpr int kFewRepeats = 12;
constexpr int kFarRepeats = 4;
constexpr int kFarthestRepeats = 2;  // in the first pass only: these streams take milliseconds
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kFarDensity = 2;  // of kSpeedDensities
constexpr size_t kFarthestDensity = 3;
constexpr double kFarSlowestNs = 8.0;  // a unit, both ways: what takes longer does not wait for memory

std::atomic<const CodecSpeeds*> finished_speeds = nullptr;
std::mutex request_mutex;  ///< held for a few instructions only
std::condition_variable required_change_or_end;
bool requested_speeds = false;  ///< speeds_so_far() had none

/// Nanoseconds, both ways.
struct Times {
  double encode = kNever;
  double decode = kNever;
};

Stream uniform_stream(uint64_t count, double density) {
  RandomSequence random(RandomKey::from(1));
  Stream stream;
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

/// Returns as many entries in runs of neighbours: nine gaps of ten are 1.
Stream clustered_stream(uint64_t count, double density) {
  constexpr double kShortShare = 0.9;
  RandomSequence random(RandomKey::from(2));
  Stream stream = uniform_stream(count, density);
  const double scale = 1.0 / std::log1p(-(1 - kShortShare) / (1 / density - kShortShare));
  double at = -1;
  for (uint32_t& index : stream.indices) {
    const bool is_short = random.next_unit() < kShortShare;
    at += 1.0 + (is_short ? 0.0 : std::floor(std::log(1.0 - random.next_unit()) * scale));
    index = static_cast<uint32_t>(at);
  }
  stream.dimension = static_cast<uint64_t>(at) + 1;
  return stream;
}

/// What all forms are measured with.
struct Streams {
  std::vector<Stream> near;       ///< at kSpeedDensities
  std::vector<Stream> few;        ///< of kFewUnits
  std::vector<Stream> far;        ///< of kFarUnits
  std::vector<Stream> clustered;  ///< of kClusteredUnits

  Streams() {
    for (const double of : kSpeedDensities) near.push_back(uniform_stream(kNearUnits, of));
    const double density = kSpeedDensities[kFarDensity];
    for (const uint64_t units : kFewUnits) few.push_back(uniform_stream(units, density));
    for (const uint64_t units : kFarUnits) {
      far.push_back(uniform_stream(units, units == kFarUnits.back() ? kSpeedDensities[kFarthestDensity] : density));
    }
    for (const uint64_t units : kClusteredUnits) clustered.push_back(clustered_stream(units, density));
  }
};

Result<SharedBytes> coded(const StreamView& stream, const CodecCandidate& candidate, const CodecSpec& spec) {
  EncodeOptions options{spec, RandomKey{}, 0};
  options.spec.automatic = false;
  options.spec.value = candidate.value;
  if (candidate.dense) {
    auto container = encode_container(to_dense(stream).view(), {}, options);
    if (!container) return std::unexpected(container.error());
    return SharedBytes::from(std::move(container->bytes));
  }
  options.spec.index = candidate.index;
  const bool plain = candidate.index == IndexCodecId::kRaw && candidate.value == ValueCodecId::kRaw;
  if (plain) return plain_container(stream, 0, stream.dimension).bytes;
  auto container = encode_container(stream, {}, options);
  if (!container) return std::unexpected(container.error());
  return SharedBytes::from(std::move(container->bytes));
}

/// Returns the best times of every form, in their order; kNone: dense. The forms take turns, so that each one meets
/// caches and branch predictors that the others have used. A step, too, codes a stream once and does much other work
/// before the next one.
std::vector<Times> times_of(std::span<const IndexCodecId> forms, const Stream& stream, int repeats) {
  std::vector<Times> best(forms.size());
  for (int run = 0; run <= repeats; ++run) {
    for (size_t turn = 0; turn < forms.size(); ++turn) {
      const size_t at = run % 2 == 0 ? turn : forms.size() - 1 - turn;  // there and back: not always behind the same
      const CodecCandidate candidate{.dense = forms[at] == IndexCodecId::kNone, .index = forms[at]};
      disturb_caches();
      const Result<CodingTimes> times = time_coding(stream.view(), candidate, {});
      MILLRACE_CHECK(times.has_value(), static_cast<int>(forms[at]));  // lossless ones refuse nothing here
      if (run == 0) continue;
      best[at].encode = std::min(best[at].encode, times->encode_ns);
      best[at].decode = std::min(best[at].decode, times->decode_ns);
    }
  }
  return best;
}

/// The best time of one way of one form, of all streams, in nanoseconds; kNever: not measured.
struct WayTimes {
  std::array<double, kSpeedDensities.size()> near = {kNever, kNever, kNever, kNever, kNever};
  std::array<double, kFewUnits.size()> few = {kNever, kNever, kNever};
  std::array<double, kFarUnits.size()> far = {kNever, kNever, kNever};
  std::array<double, kClusteredUnits.size()> clustered = {kNever, kNever};
};

WaySpeed speed_of(const WayTimes& times, bool dense) {
  const double units_of_entry = dense ? static_cast<double>(kDenseUnitsPerUnit) : 1.0;
  const double near = static_cast<double>(kNearUnits) * units_of_entry;
  const auto few = [&](size_t at) { return static_cast<double>(kFewUnits[at]) * units_of_entry; };
  // A dense code was measured where it is of interest, and takes as long a value elsewhere. Of as many entries it has
  // the fewer values, the denser they are.
  const auto measured_at = [&](size_t at) { return dense ? std::max(at, kFarDensity) : at; };
  const auto units_at = [&](size_t at) {
    return near * (dense ? kSpeedDensities[kFarDensity] / kSpeedDensities[measured_at(at)] : 1.0);
  };
  WaySpeed speed;
  for (size_t at = 0; at < kSpeedDensities.size(); ++at) {
    speed.unit_ns[at] = times.near[measured_at(at)] / units_at(at);
  }
  // What any stream takes is out of the time of a unit.
  constexpr size_t kLast = kFewUnits.size() - 1;
  const double whole = speed.unit_ns[kFarDensity];
  const double unit = std::clamp((times.near[kFarDensity] - times.few[kLast]) / (near - few(kLast)), whole / 2, whole);
  for (size_t at = 0; at <= kLast; ++at) speed.fixed_ns[at] = std::max(times.few[at] - few(at) * unit, 0.0);
  for (size_t at = 0; at < kSpeedDensities.size(); ++at) {
    double& one = speed.unit_ns[at];
    one = std::max(one - speed.fixed_ns[kLast] / units_at(at), one / 2);
  }
  speed.unit_ns[kFarDensity] = unit;
  for (size_t at = 0; at < kFarUnits.size() && times.far.back() < kNever; ++at) {
    const bool farthest = at + 1 == kFarUnits.size();
    const double units_of_far = farthest && dense ? static_cast<double>(kDenseUnitsPerFarthest) : units_of_entry;
    const double far = static_cast<double>(kFarUnits[at]) * units_of_far;
    const double near_ns = speed.unit_ns[farthest ? kFarthestDensity : kFarDensity];
    speed.far_ns[at] = std::max((times.far[at] - speed.fixed_ns[kLast]) / far - near_ns, 0.0);
  }
  if (!dense) speed.clustered = {times.clustered[0] / times.few[kLast], times.clustered[1] / times.far[0]};
  return speed;
}

/// Returns the speeds of all ways of all forms.
std::vector<CodingSpeed> form_speeds(const std::vector<IndexCodecId>& forms, const Streams& streams) {
  std::vector<WayTimes> encode(forms.size());
  std::vector<WayTimes> decode(forms.size());
  const auto measure = [&](std::span<const IndexCodecId> of, const Stream& stream, int repeats, auto place) {
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
    for (size_t few = 0; few < kFewUnits.size(); ++few) {
      measure(forms, streams.few[few], kFewRepeats, [few](WayTimes& way) -> double& { return way.few[few]; });
    }
    for (size_t at = 0; at < forms.size() && pass == 0; ++at) {
      const double unit_ns = (encode[at].near[kFarDensity] + decode[at].near[kFarDensity]) / double{kNearUnits};
      if (forms[at] == IndexCodecId::kNone || unit_ns < kFarSlowestNs) quick.push_back(forms[at]);
    }
    measure(forms, streams.far[0], kFarRepeats, [](WayTimes& way) -> double& { return way.far[0]; });
    measure(quick, streams.far[1], kFarRepeats, [](WayTimes& way) -> double& { return way.far[1]; });
    if (pass == 0)
      measure(quick, streams.far[2], kFarthestRepeats, [](WayTimes& way) -> double& { return way.far[2]; });
    measure(sparse, streams.clustered[0], kFewRepeats, [](WayTimes& way) -> double& { return way.clustered[0]; });
    measure(sparse, streams.clustered[1], kFarRepeats, [](WayTimes& way) -> double& { return way.clustered[1]; });
  }
  std::vector<CodingSpeed> speeds;
  for (size_t at = 0; at < forms.size(); ++at) {
    const bool dense = forms[at] == IndexCodecId::kNone;
    speeds.push_back({speed_of(encode[at], dense), speed_of(decode[at], dense)});
  }
  return speeds;
}

/// Times one run. Nothing where the codec refuses such values.
std::optional<Times> value_times(const ValueCodec& codec, const Stream& stream, ByteBuffer& bytes) {
  EncodeOptions options;
  options.spec.value = codec.id();
  Buffer<float> said(codec.lossless(options.spec) ? 0 : stream.values.size());
  Buffer<float> decoded(stream.values.size());
  const std::span<const float> values = stream.values;
  bytes.clear();
  const TimeNs start = monotonic_now_ns();
  if (!codec.encode(stream.indices, values, options, bytes, std::span<float>(said))) return std::nullopt;
  const TimeNs between = monotonic_now_ns();
  if (!codec.decode(bytes, stream.indices, std::span<float>(decoded))) return std::nullopt;
  return Times{static_cast<double>(between - start), static_cast<double>(monotonic_now_ns() - between)};
}

/// Returns the best times of every value codec, in the order of the list; they take turns as the forms do.
std::vector<std::optional<Times>> value_times_of(const Stream& stream, int repeats) {
  const auto codecs = value_codecs();
  std::vector<std::optional<Times>> best(codecs.size());
  ByteBuffer bytes;
  for (int run = 0; run <= repeats; ++run) {
    for (size_t turn = 0; turn < codecs.size(); ++turn) {
      const size_t at = run % 2 == 0 ? turn : codecs.size() - 1 - turn;
      disturb_caches();
      const std::optional<Times> times = value_times(*codecs[at], stream, bytes);
      if (!times || run == 0) continue;
      if (!best[at]) best[at].emplace();
      best[at]->encode = std::min(best[at]->encode, times->encode);
      best[at]->decode = std::min(best[at]->decode, times->decode);
    }
  }
  return best;
}

std::vector<CodecSpeeds::Value> value_speeds(const Streams& streams) {
  const auto codecs = value_codecs();
  const auto raw = static_cast<size_t>(std::ranges::find(codecs, ValueCodecId::kRaw, &ValueCodec::id) - codecs.begin());
  std::vector<std::vector<std::optional<Times>>> times;  // of kValueUnits
  for (const Stream& stream : streams.few) times.push_back(value_times_of(stream, kFewRepeats));
  times.push_back(value_times_of(streams.near[kFarDensity], kRepeats));
  times.push_back(value_times_of(streams.far[0], kFarRepeats));
  std::vector<CodecSpeeds::Value> speeds;
  for (size_t at = 0; at < codecs.size(); ++at) {
    if (std::ranges::any_of(times, [at](const auto& of) { return !of[at].has_value(); })) continue;
    const auto way = [&](double Times::* which) {
      CodecSpeeds::ValueWay over;
      for (size_t size = 0; size < over.ns.size(); ++size) {
        over.ns[size] = std::max(*times[size][at].*which - *times[size][raw].*which, 0.0);
      }
      return over;
    };
    speeds.push_back({codecs[at]->id(), way(&Times::encode), way(&Times::decode)});
  }
  return speeds;
}

}  // namespace

// Sanitizers would take a hundred times as long, for memory of one thread. They would check calls of iterators too.
__attribute__((noinline, no_sanitize("thread"), no_sanitize("address"))) void disturb_caches() {
  constexpr size_t kBytes = 128 * 1024;
  thread_local ByteBuffer others(kBytes);
  uint8_t* const bytes = others.data();
  for (size_t i = 0; i < kBytes; ++i) ++bytes[i];
}

Result<CodingTimes> time_coding(const StreamView& stream, const CodecCandidate& candidate, const CodecSpec& spec) {
  const TimeNs start = monotonic_now_ns();
  const Result<SharedBytes> bytes = coded(stream, candidate, spec);
  const TimeNs between = monotonic_now_ns();
  if (!bytes) return std::unexpected(bytes.error());
  ContainerLimits limits;
  limits.dimension = stream.dimension;
  const auto held = read_shared_container(*bytes, limits);
  const TimeNs end = monotonic_now_ns();
  if (!held) return std::unexpected(held.error());
  return CodingTimes{static_cast<double>(between - start), static_cast<double>(end - between), bytes->bytes.size()};
}

CodecSpeeds measure_speeds() {
  CodecSpeeds speeds;
  const Streams streams;
  std::vector<IndexCodecId> forms;
  for (const IndexCodec* codec : index_codecs()) {
    if (codec->lossless()) forms.push_back(codec->id());
  }
  forms.push_back(IndexCodecId::kNone);
  const std::vector<CodingSpeed> measured = form_speeds(forms, streams);
  for (size_t at = 0; at + 1 < forms.size(); ++at) speeds.index.push_back({forms[at], measured[at]});
  speeds.dense = measured.back();
  speeds.value = value_speeds(streams);
  return speeds;
}

const CodecSpeeds& measured_speeds() {
  static const CodecSpeeds speeds = measure_speeds();
  finished_speeds.store(&speeds, std::memory_order_release);
  return speeds;
}

const CodecSpeeds& speeds_so_far() {
  if (const CodecSpeeds* const finished = finished_speeds.load(std::memory_order_acquire)) return *finished;
  const std::lock_guard lock(request_mutex);
  requested_speeds = true;
  required_change_or_end.notify_all();
  return fallback_speeds();
}

SpeedMeasurer::SpeedMeasurer() {
  thread_ = std::thread([this] {
    std::unique_lock lock(request_mutex);
    required_change_or_end.wait(lock, [this] { return requested_speeds || ended_; });
    if (ended_) return;
    lock.unlock();
    (void)measured_speeds();
  });
}

SpeedMeasurer::~SpeedMeasurer() {
  {
    const std::lock_guard lock(request_mutex);
    ended_ = true;
    required_change_or_end.notify_all();
  }
  thread_.join();
}

}  // namespace millrace
