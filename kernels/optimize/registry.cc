#include "kernels/optimize/registry.h"

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/registry.h"
#include "kernels/base/words.h"
#include "kernels/optimize/dense.h"
#include "kernels/optimize/optimizer_list.h"

namespace millrace {
namespace {

const auto& optimizer_registry() {
#define MILLRACE_LISTED(word) word##_optimizer(),
  static const Registry registry = {MILLRACE_OPTIMIZERS(MILLRACE_LISTED)};
#undef MILLRACE_LISTED
  return registry;
}

const OptimizerEntry& optimizer_entry(Optimizer optimizer) {
  const OptimizerEntry* entry = optimizer_registry().with_number(optimizer);
  MILLRACE_CHECK(entry != nullptr, static_cast<int>(optimizer));
  return *entry;
}

std::unexpected<Error> refuse_optimizer(std::string sentence) {
  return fail(ErrorCode::kInvalidArgument, std::move(sentence));
}

Status check_parameter(const OptimizerParameter& parameter, double value, std::string_view rule) {
  const float narrow = static_cast<float>(value);
  switch (parameter.range) {
    case OptimizerParameter::Range::kAboveZero:
      if (std::isfinite(narrow) && narrow > 0) return {};
      return refuse_optimizer(std::string(rule) + ": " + std::string(parameter.name) +
                              " must be finite and above 0, in f32 too");
    case OptimizerParameter::Range::kShare:
      if (narrow >= 0 && narrow < 1) return {};
      return refuse_optimizer(std::string(rule) + ": " + std::string(parameter.name) +
                              " must be in [0, 1), in f32 too");
  }
  return {};
}

std::string optimizer_number(double value) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  MILLRACE_CHECK(error == std::errc(), value);
  return {text.data(), end};
}

std::string known_forms() {
  return listed_texts(optimizer_registry().entries(), [](const OptimizerEntry& entry) { return entry.info.form; });
}

}  // namespace

std::span<const OptimizerInfo> optimizers() {
  static const auto infos = infos_of(optimizer_registry());
  return infos;
}

const OptimizerInfo* find_optimizer(Optimizer optimizer) {
  const OptimizerEntry* entry = optimizer_registry().with_number(optimizer);
  return entry == nullptr ? nullptr : &entry->info;
}

std::string_view optimizer_name(Optimizer optimizer) {
  const OptimizerInfo* info = find_optimizer(optimizer);
  return info == nullptr ? "unknown" : info->name;
}

size_t optimizer_states(Optimizer optimizer) { return optimizer_entry(optimizer).info.states; }

Result<OptimizerSpec> optimizer_from_text(std::string_view text) {
  const std::vector<std::string_view> words = split(text, ':');
  const OptimizerEntry* entry = optimizer_registry().with_name(words[0]);
  if (entry == nullptr || words.size() > entry->parameters.size() + 1) {
    const auto name = [](const OptimizerEntry& known) { return std::string(known.info.name); };
    const std::string hint = did_you_mean(words[0], texts_of(optimizer_registry().entries(), name));
    return refuse_optimizer("'" + std::string(text) + "' is not an optimizer; known are " + known_forms() + hint);
  }
  OptimizerSpec spec;
  spec.optimizer = entry->info.optimizer;
  for (size_t at = 0; at < entry->parameters.size(); ++at) {
    const OptimizerParameter& parameter = entry->parameters[at];
    if (at + 1 >= words.size() && parameter.fallback) {
      spec.*parameter.field = *parameter.fallback;
      continue;
    }
    const std::string_view word = at + 1 < words.size() ? words[at + 1] : std::string_view();
    const std::optional<double> number = number_from_text<double>(word);
    if (!number) {
      return refuse_optimizer("'" + std::string(text) + "': its " + std::string(parameter.name) +
                              " is not a number; the form is " + std::string(entry->info.form));
    }
    spec.*parameter.field = *number;
  }
  if (const Status valid = validate(spec); !valid) return std::unexpected(valid.error());
  return spec;
}

std::string optimizer_text(const OptimizerSpec& spec) {
  const OptimizerEntry& entry = optimizer_entry(spec.optimizer);
  std::string text(entry.info.name);
  for (const OptimizerParameter& parameter : entry.parameters) text += ":" + optimizer_number(spec.*parameter.field);
  return text;
}

Status validate(const OptimizerSpec& spec) {
  const OptimizerEntry* entry = optimizer_registry().with_number(spec.optimizer);
  if (entry == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "unknown optimizer number " + std::to_string(static_cast<int>(spec.optimizer)));
  }
  OptimizerSpec others = spec;
  others.optimizer = Optimizer::kNone;
  for (const OptimizerParameter& parameter : entry->parameters) {
    if (const Status valid = check_parameter(parameter, spec.*parameter.field, entry->info.name); !valid) return valid;
    others.*parameter.field = 0;
  }
  if (others != OptimizerSpec{}) {
    return refuse_optimizer(std::string(entry->info.name) +
                            " has a parameter set that belongs to another optimizer; its form is " +
                            std::string(entry->info.form));
  }
  return {};
}

namespace {

Status take_step(const OptimizerStep& step) {
  const OptimizerEntry& entry = optimizer_entry(step.spec.optimizer);
  MILLRACE_CHECK(step.arrays.weights.size() == step.sum.dimension && step.denominator > 0, step.arrays.weights.size(),
                 step.sum.dimension, step.denominator);
  for (size_t at = 0; at < entry.info.states; ++at) {
    MILLRACE_CHECK(step.arrays.states[at].size() == step.sum.dimension, at, step.arrays.states[at].size(),
                   step.sum.dimension);
  }
  if (entry.step(step)) return {};
  return fail(ErrorCode::kNonFinite,
              "a weight or the optimizer's state overflowed: the job has diverged, or the rate is too high");
}

}  // namespace

Status optimize(const OptimizerSpec& spec, const OptimizerArrays& arrays, const StreamView& sum, double denominator,
                uint64_t step) {
  return take_step({spec, arrays, sum, denominator, step, TouchedEntries::kCarried});
}

Status optimize_dense(const OptimizerSpec& spec, const OptimizerArrays& arrays, const StreamView& sum,
                      double denominator, uint64_t step) {
  return take_step({spec, arrays, sum, denominator, step, TouchedEntries::kAll});
}

}  // namespace millrace
