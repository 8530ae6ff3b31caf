#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"

/// The text forms of quantities in flags, files and documents: one parser a unit. A duration and a rate have a unit,
/// also where they are 0; a size without one is bytes.
namespace millrace {

inline constexpr TimeNs kDurationMax = TimeNs{30 * 86'400} * kNsPerS;
inline constexpr double kRateMax = 1e16;
inline constexpr uint64_t kSizeMax = uint64_t{1} << 62;

/// Returns the nanoseconds of a number and ns, us, ms, s, m (minutes) or h, as 0.4ns or 1.5s.
///
/// Errors   invalid_argument: another text; a number below 0, or above kDurationMax.
Result<double> nanoseconds_from_text(std::string_view text);

/// Returns a duration of whole nanoseconds from such a text.
///
/// Errors   invalid_argument: as above; a fraction of a nanosecond.
Result<TimeNs> duration_from_text(std::string_view text);

/// Returns the text of a duration, exactly, with the largest unit that has a whole number of it: "200ms", "90m", "0s".
std::string duration_text(TimeNs duration);

/// Returns the bits a second of a number and bit, kbit, mbit or gbit, as tc(8) has them: 2.5gbit.
///
/// Errors   invalid_argument: another text; a number below 0, or above kRateMax.
Result<double> rate_from_text(std::string_view text);

/// Returns the text of a rate, with the largest unit of which it has at least one: "2.5gbit", "0bit".
std::string rate_text(double bits_per_s);

/// Returns the bytes of a whole number, alone or with B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB.
///
/// Errors   invalid_argument: another text; more than kSizeMax.
Result<uint64_t> size_from_text(std::string_view text);

/// Returns the text of a size, exactly, with the largest power of 1024 that divides it: "64MiB", "1500B".
std::string size_text(uint64_t bytes);

/// Refuses a value outside its limits, and NaN, with the limits: "'0s': it takes 1ms to 1m".
///
/// text     the value as it was given.
/// most     infinity: there is no upper limit.
/// text_of  writes a limit as the user would.
/// Errors   invalid_argument.
template <typename Value, typename TextOf>
Status check_limits(std::string_view text, Value value, Value least, Value most, TextOf text_of) {
  if (value >= least && value <= most) return {};
  const bool is_open = std::numeric_limits<Value>::has_infinity && most == std::numeric_limits<Value>::infinity();
  return fail(ErrorCode::kInvalidArgument, "'" + std::string(text) + "': it takes " + text_of(least) +
                                               (is_open ? std::string(" or more") : " to " + text_of(most)));
}

}  // namespace millrace
