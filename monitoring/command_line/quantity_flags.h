#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "kernels/base/units.h"

/// Flags of durations, rates and sizes: every program has the same forms (kernels/base/units.h).
namespace millrace::monitoring {

/// Refers to a variable that counts a duration in some unit.
template <typename Number>
struct DurationCount {
  Number& count;
  TimeNs unit;
};
template <typename Number>
DurationCount<Number> in_ns(Number& count) {
  return {count, 1};
}
template <typename Number>
DurationCount<Number> in_ms(Number& count) {
  return {count, kNsPerMs};
}
template <typename Number>
DurationCount<Number> in_seconds(Number& count) {
  return {count, kNsPerS};
}

/// Holds the limits of a duration.
struct DurationRange {
  TimeNs least = 0;
  TimeNs most = kDurationMax;
};

/// Returns the value of a flag, or refuses the flag with the reason.
template <typename Value>
Value value_or_refuse(const std::string& flag, const Result<Value>& value) {
  if (!value) throw CLI::ValidationError(flag, value.error().message);
  return *value;
}

/// Refuses a flag for the reason of a failed check.
inline void refuse_failed(const std::string& flag, const Status& check) {
  if (!check) throw CLI::ValidationError(flag, check.error().message);
}

/// Adds a flag of a duration. The variable's value is the default that help shows.
///
/// REQUIRES  the variable outlives the parsing.
template <typename Number>
CLI::Option* add_duration(CLI::App& app, const std::string& flag, DurationCount<Number> into,
                          const std::string& description, DurationRange range = {}) {
  const auto set = [flag, into, range](const std::string& text) {
    const TimeNs duration = value_or_refuse(flag, duration_from_text(text));
    refuse_failed(flag, check_limits(text, duration, range.least, range.most, duration_text));
    if constexpr (std::numeric_limits<Number>::is_integer) {
      if (duration % into.unit != 0) {
        throw CLI::ValidationError(flag, "'" + text + "' is not a multiple of " + duration_text(into.unit));
      }
      into.count = static_cast<Number>(duration / into.unit);
    } else {
      into.count = static_cast<Number>(duration) / static_cast<Number>(into.unit);
    }
  };
  TimeNs shown = 0;
  if constexpr (std::numeric_limits<Number>::is_integer) {
    shown = static_cast<TimeNs>(into.count) * into.unit;
  } else {
    shown = std::llround(into.count * static_cast<Number>(into.unit));
  }
  return app.add_option_function<std::string>(flag, set, description)
      ->type_name("DURATION")
      ->default_str(duration_text(shown));
}

/// Adds a flag of a rate in bits a second, from `least` on.
///
/// REQUIRES  the variable outlives the parsing.
inline CLI::Option* add_rate(CLI::App& app, const std::string& flag, double& bits_per_s, const std::string& description,
                             double least = 0) {
  const auto set = [flag, &bits_per_s, least](const std::string& text) {
    const double rate = value_or_refuse(flag, rate_from_text(text));
    refuse_failed(flag, check_limits(text, rate, least, kRateMax, rate_text));
    bits_per_s = rate;
  };
  return app.add_option_function<std::string>(flag, set, description)->type_name("RATE");
}

/// Adds a flag of a size in bytes. The variable's value is the default that help shows.
///
/// REQUIRES  the variable outlives the parsing.
template <typename Number>
CLI::Option* add_size(CLI::App& app, const std::string& flag, Number& bytes, const std::string& description,
                      uint64_t least = 1, uint64_t most = std::numeric_limits<Number>::max()) {
  const auto set = [flag, &bytes, least, most](const std::string& text) {
    const uint64_t size = value_or_refuse(flag, size_from_text(text));
    refuse_failed(flag, check_limits(text, size, least, most, size_text));
    bytes = static_cast<Number>(size);
  };
  return app.add_option_function<std::string>(flag, set, description)
      ->type_name("SIZE")
      ->default_str(size_text(static_cast<uint64_t>(bytes)));
}

}  // namespace millrace::monitoring
