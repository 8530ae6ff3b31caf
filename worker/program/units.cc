#include "worker/program/units.h"

#include <fmt/format.h>

#include <string_view>

namespace millrace::program {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

}  // namespace

std::string rounded_duration_text(double seconds) {
  constexpr Unit kUnits[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
  for (const Unit& unit : kUnits) {
    if (seconds >= unit.factor) return fmt::format("{:.3g} {}", seconds / unit.factor, unit.name);
  }
  return seconds == 0 ? "0" : fmt::format("{:.3g} ns", seconds * 1e9);
}

}  // namespace millrace::program
