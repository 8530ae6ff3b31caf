#include "worker/config/selection_text.h"

#include <fmt/format.h>

#include <variant>

namespace millrace::worker {

std::string selection_text(const SelectionSpec& spec) {
  const SelectionInfo* info = find_selection(spec.selection);
  std::string text(selection_name(spec.selection));
  if (info == nullptr) return text;
  for (const SelectionParameter& parameter : info->parameters) {
    const bool is_one = parameter.amount == SelectionAmount::kShare && spec.k == 1;  // "1" is a density
    text +=
        is_one ? ":count=1" : std::visit([](auto number) { return fmt::format(":{}", number); }, parameter.value(spec));
  }
  if (spec.alternate_signs) text += ":signs";
  if (spec.warm_up == WarmUp::kDense) text += fmt::format(":dense={}", spec.warm_up_steps);
  if (spec.warm_up == WarmUp::kExponential) text += fmt::format(":warm_up={}", spec.warm_up_steps);
  return text;
}

}  // namespace millrace::worker
