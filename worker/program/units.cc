#include "worker/program/units.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

namespace millrace::program {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

template <size_t count>
std::optional<double> scaled(const std::string& text, const Unit (&units)[count]) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) return std::nullopt;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const Unit& one : units) {
    if (one.name == unit) return number * one.factor;
  }
  return std::nullopt;
}

}  // namespace

Result<TimeNs> parse_duration(const std::string& text) {
  constexpr double kDay = 86'400e9;
  constexpr Unit kUnits[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  const auto value = scaled(text, kUnits);
  if (!value || *value < 0 || *value > kDay) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + text + "' is not a time: a number with ns, us, ms or s, up to a day");
  }
  return static_cast<TimeNs>(std::llround(*value));
}

Result<double> parse_rate(const std::string& text) {
  constexpr Unit kUnits[] = {{"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}};
  const auto value = scaled(text, kUnits);
  if (!value || *value < 125 || *value > 1.25e12) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + text + "' is not a rate: a number with kbit, mbit or gbit, from 1kbit to 10000gbit");
  }
  return *value;
}

std::string duration_text(double seconds) {
  constexpr Unit kUnits[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
  for (const Unit& unit : kUnits) {
    if (seconds >= unit.factor) return fmt::format("{:.3g} {}", seconds / unit.factor, unit.name);
  }
  return seconds == 0 ? "0" : fmt::format("{:.3g} ns", seconds * 1e9);
}

}  // namespace millrace::program
