#include "worker/training/exchange/selection_text.h"

#include <fmt/format.h>

namespace millrace::training {

std::string selection_text(const SelectionSpec& spec) {
  const SelectionInfo* info = find_selection(spec.selection);
  std::string text(selection_name(spec.selection));
  if (info == nullptr) return text;
  switch (info->amount) {
    case SelectionAmount::kNone: break;
    case SelectionAmount::kShare:
      text += spec.k != 0 ? fmt::format(":{}", spec.k) : fmt::format(":{}", spec.density);
      break;
    case SelectionAmount::kMagnitude: text += fmt::format(":{}", spec.threshold); break;
    case SelectionAmount::kVariance: text += fmt::format(":{}", spec.variance); break;
  }
  switch (info->extra) {
    case SelectionExtra::kNone: break;
    case SelectionExtra::kPeriod: text += fmt::format(":{}", spec.period); break;
    case SelectionExtra::kBucketSize: text += fmt::format(":{}", spec.bucket_size); break;
    case SelectionExtra::kIterations: text += fmt::format(":{}", spec.iterations); break;
  }
  if (spec.alternate_signs) text += ":signs";
  if (spec.warm_up == WarmUp::kDense) text += fmt::format(":dense={}", spec.warm_up_steps);
  if (spec.warm_up == WarmUp::kExponential) text += fmt::format(":warm_up={}", spec.warm_up_steps);
  return text;
}

}  // namespace millrace::training
