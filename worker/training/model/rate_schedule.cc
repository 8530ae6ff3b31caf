#include "worker/training/model/rate_schedule.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <vector>

namespace millrace::training {
namespace {

struct Word {
  std::string_view name;
  RateForm form;
  size_t numbers_max;
};
constexpr std::array kWords{Word{"constant", RateForm::kConstant, 0}, Word{"inverse", RateForm::kInverse, 1},
                            Word{"inverse_sqrt", RateForm::kInverseSqrt, 1}, Word{"step", RateForm::kStep, 2}};

Result<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is not a number", text));
  }
  return value;
}

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t colon = text.find(':');
    parts.push_back(text.substr(0, colon));
    if (colon == std::string_view::npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

}  // namespace

double RateSchedule::at(double epochs_passed) const {
  const double t = epochs_passed / epochs;
  switch (form) {
    case RateForm::kConstant: break;
    case RateForm::kInverse: return rate / (1 + t);
    case RateForm::kInverseSqrt: return rate / std::sqrt(1 + t);
    case RateForm::kStep: return rate * std::pow(factor, std::floor(t));
  }
  return rate;
}

Result<RateSchedule> rate_schedule_from_text(std::string_view text, double rate) {
  const std::vector<std::string_view> parts = parts_of(text);
  for (const Word& word : kWords) {
    if (word.name != parts.front()) continue;
    RateSchedule schedule{.form = word.form, .rate = rate};
    if (parts.size() - 1 > word.numbers_max) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("schedule '{}': {} takes {} numbers at most", text, word.name, word.numbers_max));
    }
    // Epochs come last.
    const size_t epochs_at = word.numbers_max;
    for (size_t at = 1; at < parts.size(); ++at) {
      const Result<double> number = number_of(parts[at]);
      if (!number)
        return fail(ErrorCode::kInvalidArgument, fmt::format("schedule '{}': {}", text, number.error().message));
      (at == epochs_at ? schedule.epochs : schedule.factor) = *number;
    }
    if (!(schedule.epochs > 0)) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("schedule '{}': its epochs must be above 0", text));
    }
    if (!(schedule.factor > 0 && schedule.factor <= 1)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("schedule '{}': its factor must be above 0, and 1 at most", text));
    }
    return schedule;
  }
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("schedule '{}': constant, inverse[:EPOCHS], inverse_sqrt[:EPOCHS] or step[:FACTOR[:EPOCHS]]", text));
}

std::string rate_schedule_text(const RateSchedule& schedule) {
  switch (schedule.form) {
    case RateForm::kConstant: break;
    case RateForm::kInverse: return fmt::format("inverse:{}", schedule.epochs);
    case RateForm::kInverseSqrt: return fmt::format("inverse_sqrt:{}", schedule.epochs);
    case RateForm::kStep: return fmt::format("step:{}:{}", schedule.factor, schedule.epochs);
  }
  return "constant";
}

}  // namespace millrace::training
