#include "kernels/base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "kernels/base/words.h"

namespace millrace {
namespace {

template <typename Number>
struct Unit {
  std::string_view name;
  Number factor;
};

constexpr std::array kDurationUnits = {Unit<TimeNs>{"ns", 1},           Unit<TimeNs>{"us", kNsPerUs},
                                       Unit<TimeNs>{"ms", kNsPerMs},    Unit<TimeNs>{"s", kNsPerS},
                                       Unit<TimeNs>{"m", 60 * kNsPerS}, Unit<TimeNs>{"h", 3'600 * kNsPerS}};
constexpr std::array kRateUnits = {Unit<double>{"bit", 1}, Unit<double>{"kbit", 1e3}, Unit<double>{"mbit", 1e6},
                                   Unit<double>{"gbit", 1e9}};
constexpr uint64_t kKibi = 1'024;
constexpr std::array kDecimalSizes = {Unit<uint64_t>{"kB", 1'000}, Unit<uint64_t>{"MB", 1'000'000},
                                      Unit<uint64_t>{"GB", 1'000'000'000}, Unit<uint64_t>{"TB", 1'000'000'000'000}};
constexpr std::array kBinarySizes = {Unit<uint64_t>{"B", 1}, Unit<uint64_t>{"KiB", kKibi},
                                     Unit<uint64_t>{"MiB", kKibi* kKibi}, Unit<uint64_t>{"GiB", kKibi* kKibi* kKibi},
                                     Unit<uint64_t>{"TiB", kKibi* kKibi* kKibi* kKibi}};

/// Splits a text behind its leading digits and points.
struct Quantity {
  std::string_view number;
  std::string_view unit;
};
Quantity quantity_of(std::string_view text) {
  const size_t at = std::min(text.find_first_not_of("0123456789."), text.size());
  return {text.substr(0, at), text.substr(at)};
}

template <typename Number>
std::optional<Number> factor_of(std::string_view unit, std::span<const Unit<Number>> units) {
  for (const Unit<Number>& known : units) {
    if (known.name == unit) return known.factor;
  }
  return std::nullopt;
}

/// Returns the number of a text times its unit; empty: it is none, or above `most`.
template <typename Number>
std::optional<double> number_with_unit(std::string_view text, std::span<const Unit<Number>> units, double most) {
  const Quantity quantity = quantity_of(text);
  const auto number = number_from_text<double>(quantity.number);
  const std::optional<Number> factor = factor_of(quantity.unit, units);
  if (!number || !factor) return std::nullopt;
  const double value = *number * static_cast<double>(*factor);
  return value <= most ? std::optional(value) : std::nullopt;
}

std::unexpected<Error> not_a_quantity(std::string_view text, std::string_view wanted) {
  return fail(ErrorCode::kInvalidArgument, "'" + std::string(text) + "' is not " + std::string(wanted));
}

/// Returns the shortest digits that are read back as `value`, without an exponent.
std::string digits_of(double value) {
  std::array<char, 400> text{};  // the smallest value has 324 digits after the point
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  return {text.data(), end};
}

}  // namespace

Result<double> nanoseconds_from_text(std::string_view text) {
  const auto value = number_with_unit<TimeNs>(text, kDurationUnits, static_cast<double>(kDurationMax));
  if (value) return *value;
  return not_a_quantity(text, "a duration: give a number with ns, us, ms, s, m or h, as 250ms or 10s, up to " +
                                  duration_text(kDurationMax));
}

Result<TimeNs> duration_from_text(std::string_view text) {
  const Result<double> value = nanoseconds_from_text(text);
  if (!value) return std::unexpected(value.error());
  const double whole = std::nearbyint(*value);
  // A decimal fraction of a unit is not exact in binary: 1.1us is 1100.0000000000002 ns. The number and its product
  // with the unit are rounded, each by at most 2^-53 of the value.
  if (std::fabs(*value - whole) > std::numeric_limits<double>::epsilon() * whole) {
    return not_a_quantity(text, "a whole number of nanoseconds");
  }
  return static_cast<TimeNs>(whole);
}

std::string duration_text(TimeNs duration) {
  if (duration == 0) return "0s";
  size_t unit = kDurationUnits.size() - 1;
  while (duration % kDurationUnits[unit].factor != 0) --unit;
  return std::to_string(duration / kDurationUnits[unit].factor).append(kDurationUnits[unit].name);
}

Result<double> rate_from_text(std::string_view text) {
  const auto value = number_with_unit<double>(text, kRateUnits, kRateMax);
  if (value) return *value;
  return not_a_quantity(
      text, "a rate: give a number with bit, kbit, mbit or gbit a second, as 2.5gbit, up to " + rate_text(kRateMax));
}

std::string rate_text(double bits_per_s) {
  size_t unit = kRateUnits.size() - 1;
  while (unit > 0 && bits_per_s < kRateUnits[unit].factor) --unit;
  return digits_of(bits_per_s / kRateUnits[unit].factor).append(kRateUnits[unit].name);
}

Result<uint64_t> size_from_text(std::string_view text) {
  const Quantity quantity = quantity_of(text);
  const auto number = number_from_text<uint64_t>(quantity.number);
  std::optional<uint64_t> factor = factor_of<uint64_t>(quantity.unit.empty() ? "B" : quantity.unit, kBinarySizes);
  if (!factor) factor = factor_of<uint64_t>(quantity.unit, kDecimalSizes);
  if (number && factor && *number <= kSizeMax / *factor) return *number * *factor;
  return not_a_quantity(
      text,
      "a size: give a whole number of bytes, or one with kB, MB, GB, TB, KiB, MiB, GiB or TiB, as 64MiB, up "
      "to " +
          size_text(kSizeMax));
}

std::string size_text(uint64_t bytes) {
  size_t unit = bytes == 0 ? 0 : kBinarySizes.size() - 1;
  while (bytes % kBinarySizes[unit].factor != 0) --unit;
  return std::to_string(bytes / kBinarySizes[unit].factor).append(kBinarySizes[unit].name);
}

}  // namespace millrace
