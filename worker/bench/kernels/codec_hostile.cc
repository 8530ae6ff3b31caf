#include "worker/bench/kernels/codec_hostile.h"

#include <tbb/global_control.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "worker/bench/kernels/hostile_codes.h"
#include "worker/bench/kernels/peak_memory.h"

namespace millrace::bench {
namespace {

struct Output {
  IndexBuffer indices;
  Buffer<float> values;

  uint64_t bytes() const { return indices.capacity() * sizeof(uint32_t) + values.capacity() * sizeof(float); }
};

/// Decodes a code that claims `count` entries.
using Decode = std::function<void(ByteSpan bytes, uint64_t count, Output& out)>;

double seconds_of(const Decode& decode, const HostileCode& code, Output& warm) {
  const TimeNs start = monotonic_now_ns();
  decode(code.bytes, code.count, warm);
  return static_cast<double>(std::max<TimeNs>(monotonic_now_ns() - start, 1)) * 1e-9;
}

double least_seconds(const Decode& decode, const HostileCode& code, uint32_t repeats) {
  Output warm;
  double least = seconds_of(decode, code, warm);
  for (uint32_t i = 0; i < repeats; ++i) least = std::min(least, seconds_of(decode, code, warm));
  return least;
}

std::optional<uint64_t> memory_of(const Decode& decode, const HostileCode& code) {
  const PeakMemory peak;
  Output out;
  decode(code.bytes, code.count, out);
  const std::optional<uint64_t> bytes = peak.bytes();
  if (!bytes) return std::nullopt;
  return *bytes - std::min(*bytes, out.bytes());
}

/// Of many codes the one that takes longest, and the one that takes most memory. Each is decoded once, the slow ones
/// again.
class Worst {
 public:
  explicit Worst(const Decode& decode) : decode_(decode) {}

  void add(const HostileCode& code) {
    ++cases_;
    if (const auto memory = memory_of(decode_, code); memory && (!memory_ || *memory > *memory_)) {
      memory_ = memory;
      memory_of_ = code.name;
    }
    slow_.emplace_back(seconds_of(decode_, code, warm_), code);
    std::ranges::sort(slow_, std::greater<>(), &std::pair<double, HostileCode>::first);
    if (slow_.size() > kKept) slow_.pop_back();
  }

  /// The slowest by the least of `repeats` times.
  std::pair<double, std::string> slowest(uint32_t repeats) const {
    std::pair<double, std::string> worst{0, "none"};
    for (const auto& [once, code] : slow_) {
      const double seconds = least_seconds(decode_, code, repeats);
      if (seconds > worst.first) worst = {seconds, code.name};
    }
    return worst;
  }
  std::optional<uint64_t> memory() const { return memory_; }
  const std::string& memory_name() const { return memory_of_; }
  uint64_t cases() const { return cases_; }

 private:
  static constexpr size_t kKept = 6;
  const Decode& decode_;
  Output warm_;
  std::vector<std::pair<double, HostileCode>> slow_;
  std::optional<uint64_t> memory_;
  std::string memory_of_ = "none";
  uint64_t cases_ = 0;
};

nlohmann::json kib_json(std::optional<uint64_t> bytes) {
  return bytes ? nlohmann::json(static_cast<double>(*bytes) / 1024) : nlohmann::json();
}

nlohmann::json row_of(const std::string& name, const char* kind, const Decode& decode, const HostileCode& good,
                      const Worst& good_ones, const Worst& hostile, uint32_t repeats) {
  const auto [good_s, good_name] = good_ones.slowest(repeats);
  const auto [hostile_s, hostile_name] = hostile.slowest(repeats);
  return {{"algorithm", name},
          {"kind", kind},
          {"bytes", good.bytes.size()},
          {"good_us", least_seconds(decode, good, repeats) * 1e6},
          {"slowest_good_us", good_s * 1e6},
          {"slowest_good", good_name},
          {"cases", hostile.cases()},
          {"hostile_us", hostile_s * 1e6},
          {"hostile", hostile_name},
          {"ratio", hostile_s / good_s},
          {"good_kib", kib_json(good_ones.memory())},
          {"hostile_kib", kib_json(hostile.memory())},
          {"hostile_memory", hostile.memory_name()}};
}

/// The most of [1, most] for which `fits`, if it fits less and less; 0: not 1 either.
template <typename Fits>
uint64_t largest(uint64_t most, const Fits& fits) {
  uint64_t low = 0;
  while (low < most) {
    const uint64_t middle = low + (most - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      most = middle - 1;
    }
  }
  return low;
}

// --------------------------------------------------------------------------------------------------------------
// indices

struct Pattern {
  const char* name;
  uint64_t (*at)(uint64_t i, uint64_t count, uint64_t n);
};

constexpr std::array<Pattern, 5> kPatterns = {{
    {"equally far apart", [](uint64_t i, uint64_t count, uint64_t n) { return i * n / count; }},
    {"consecutive", [](uint64_t i, uint64_t, uint64_t) { return i; }},
    {"every second", [](uint64_t i, uint64_t, uint64_t) { return 2 * i; }},
    {"three of eight", [](uint64_t i, uint64_t, uint64_t) { return 8 * (i / 3) + i % 3; }},
    {"255 of 256", [](uint64_t i, uint64_t, uint64_t) { return i + i / 255; }},
}};

IndexBuffer pattern_indices(const Pattern& pattern, uint64_t count, uint64_t n) {
  IndexBuffer indices(count);
  for (uint64_t i = 0; i < count; ++i) indices[i] = static_cast<uint32_t>(pattern.at(i, count, n));
  return indices;
}

/// A good code, of the count that is decoded.
HostileCode index_code(const IndexCodec& codec, IndexSpan indices, uint64_t n, double rate, std::string name) {
  EncodeOptions options;
  options.spec.bloom_false_positive_rate = rate;
  HostileCode code{std::move(name), {}, indices.size()};
  IndexBuffer said;
  MILLRACE_CHECK(codec.encode(indices, n, options, code.bytes, codec.lossless() ? nullptr : &said).has_value());
  if (!codec.lossless()) code.count = said.size();
  return code;
}

/// Adds good codes of other indices that take at most `bytes` bytes.
void add_good_indices(const IndexCodec& codec, size_t bytes, uint64_t n, Worst& good) {
  const std::vector<double> rates = codec.takes_rate() ? std::vector<double>{0.99, 0.6, 0.5, 0.35, 0.1, 0.001, 1e-9}
                                                       : std::vector<double>{CodecSpec().bloom_false_positive_rate};
  for (const Pattern& pattern : kPatterns) {
    const uint64_t most = largest(n, [&](uint64_t count) { return pattern.at(count - 1, count, n) < n; });
    for (const double rate : rates) {
      const uint64_t count = largest(most, [&](uint64_t some) {
        // Filters are of one size for a number of indices; making one takes long.
        if (codec.takes_rate()) return codec.bytes_estimate(some, n, {.bloom_false_positive_rate = rate}) <= bytes;
        return index_code(codec, pattern_indices(pattern, some, n), n, rate, "").bytes.size() <= bytes;
      });
      if (count == 0) continue;
      const std::string name = std::to_string(count) + ' ' + pattern.name +
                               (codec.takes_rate() ? ", rate " + std::to_string(rate) : std::string());
      good.add(index_code(codec, pattern_indices(pattern, count, n), n, rate, name));
    }
  }
}

IndexBuffer hostile_uniform_indices(uint64_t n, uint64_t count, uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  IndexBuffer indices;
  uint64_t wanted = count;
  for (uint64_t i = 0; wanted > 0; ++i) {  // [Knuth97, 3.4.2, algorithm S]
    if (random.next_below(n - i) >= wanted) continue;
    indices.push_back(static_cast<uint32_t>(i));
    --wanted;
  }
  return indices;
}

nlohmann::json hostile_index_row(const IndexCodec& codec, uint64_t count, const CodecBenchOptions& options) {
  const uint64_t n = options.n;
  const Decode decode = [&](ByteSpan bytes, uint64_t said, Output& out) {
    static_cast<void>(codec.decode(bytes, n, said, out.indices));
  };
  const HostileCode good = index_code(codec, hostile_uniform_indices(n, count, options.seed), n,
                                      CodecSpec().bloom_false_positive_rate, "uniform");
  Worst good_ones(decode);
  good_ones.add(good);
  add_good_indices(codec, good.bytes.size(), n, good_ones);
  Worst hostile(decode);
  const auto add = [&](const HostileCode& code) { hostile.add(code); };
  visit_hostile_codes(good.bytes, good.count, n, options.seed, add);
  visit_crafted_codes(codec, good.bytes.size(), n, add);
  return row_of(std::string(codec.name()), "index", decode, good, good_ones, hostile, options.repeats);
}

// ---------------------------------------------------------------------------------------------------------------
// values

struct Values {
  const char* name;
  float (*at)(uint64_t i, RandomSequence& random);
};

constexpr std::array<Values, 6> kValues = {{
    {"Gaussian", [](uint64_t, RandomSequence& random) { return static_cast<float>(random.next_normal()); }},
    // Sums and products of such take a processor's slow way, from any sender.
    {"denormal", [](uint64_t, RandomSequence& random) { return static_cast<float>(1e-38 * random.next_normal()); }},
    {"zeros", [](uint64_t, RandomSequence&) { return 0.0F; }},
    {"equal", [](uint64_t, RandomSequence&) { return 0.25F; }},
    {"rising", [](uint64_t i, RandomSequence&) { return static_cast<float>(i + 1); }},
    {"one of 64 not 0", [](uint64_t i, RandomSequence&) { return i % 64 == 5 ? -1.5F : 0.0F; }},
}};

HostileCode value_code(const ValueCodec& codec, const CodecSpec& spec, const Values& values, uint64_t count,
                       uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  Buffer<float> of(count);
  for (uint64_t i = 0; i < count; ++i) of[i] = values.at(i, random);
  HostileCode code{std::to_string(count) + ' ' + values.name, {}, count};
  Buffer<float> said(codec.lossless(spec) ? 0 : count);
  const EncodeOptions options{spec, RandomKey::from(seed), 0};
  // There may be values that a codec has no code for.
  if (!codec.encode({}, of, options, code.bytes, std::span<float>(said))) return {code.name, {}, 0};
  return code;
}

nlohmann::json hostile_value_row(const ValueCodec& codec, const CodecSpec& spec, uint64_t count,
                                 const CodecBenchOptions& options) {
  const Decode decode = [&](ByteSpan bytes, uint64_t said, Output& out) {
    if (!codec.check(bytes, said)) return;  // asked before there is memory for the values
    out.values.resize(said);
    static_cast<void>(codec.decode(bytes, {}, std::span<float>(out.values)));
  };
  const HostileCode good = value_code(codec, spec, kValues[0], count, options.seed);
  Worst good_ones(decode);
  for (const Values& values : kValues) {
    const uint64_t most = largest(options.n, [&](uint64_t some) {
      const HostileCode code = value_code(codec, spec, values, some, options.seed);
      return code.count == some && code.bytes.size() <= good.bytes.size();
    });
    if (most > 0) good_ones.add(value_code(codec, spec, values, most, options.seed));
  }
  Worst hostile(decode);
  visit_hostile_codes(good.bytes, count, options.n, options.seed, [&](const HostileCode& code) { hostile.add(code); });
  return row_of(codec.text(spec), "value", decode, good, good_ones, hostile, options.repeats);
}

}  // namespace

Result<nlohmann::json> bench_codec_hostile(const CodecBenchOptions& options) {
  MILLRACE_CHECK(options.n >= 1 && options.n <= uint64_t{1} << 28 && options.repeats >= 1, options.n, options.repeats);
  MILLRACE_CHECK(options.density > 0 && options.density <= 1 && options.trace.empty(), options.density);
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  const auto count = std::max<uint64_t>(1, static_cast<uint64_t>(options.density * static_cast<double>(options.n)));
  nlohmann::json rows = nlohmann::json::array();
  for (const IndexCodec* codec : index_codecs()) rows.push_back(hostile_index_row(*codec, count, options));
  for (const ValueCodec* codec : value_codecs()) {
    const bool has_bits = codec->id() == ValueCodecId::kQsgd;
    for (const uint32_t bits : has_bits ? std::vector<uint32_t>{2, 4, 8} : std::vector<uint32_t>{4})
      rows.push_back(hostile_value_row(*codec, {.value = codec->id(), .qsgd_bits = bits}, count, options));
  }
  return nlohmann::json{{"bench", "codec_hostile"},
                        {"n", options.n},
                        {"density", options.density},
                        {"k", count},
                        {"repeats", options.repeats},
                        {"seed", options.seed},
                        {"threads", 1},
                        {"rows", std::move(rows)}};
}

}  // namespace millrace::bench
