#include <string>
#include <vector>

#include "kernels/base/words.h"
#include "kernels/select/select.h"

namespace millrace {
namespace {

std::string amount_word(SelectionAmount amount) {
  switch (amount) {
    case SelectionAmount::kNone: return "";
    case SelectionAmount::kShare: return ":DENSITY|COUNT";
    case SelectionAmount::kMagnitude: return ":MAGNITUDE";
    case SelectionAmount::kVariance: return ":VARIANCE";
  }
  return "";
}

std::string extra_word(SelectionExtra extra) {
  switch (extra) {
    case SelectionExtra::kNone: return "";
    case SelectionExtra::kPeriod: return "[:PERIOD]";
    case SelectionExtra::kBucketSize: return "[:BUCKET]";
    case SelectionExtra::kIterations: return "[:ITERATIONS]";
  }
  return "";
}

std::unexpected<Error> refuse_selection(std::string_view text, const std::string& wanted) {
  return fail(ErrorCode::kInvalidArgument, "'" + std::string(text) + "' is not " + wanted);
}

bool set_magnitude(std::string_view word, double& value) { return assign_number(word, value) && value > 0; }

bool set_first(std::string_view word, SelectionAmount amount, SelectionSpec& spec) {
  switch (amount) {
    case SelectionAmount::kNone: return false;
    case SelectionAmount::kShare: return set_amount(word, spec.density, spec.k).has_value();
    case SelectionAmount::kMagnitude: return set_magnitude(word, spec.threshold);
    case SelectionAmount::kVariance: return set_magnitude(word, spec.variance);
  }
  return false;
}

bool set_second(std::string_view word, SelectionExtra extra, SelectionSpec& spec) {
  switch (extra) {
    case SelectionExtra::kNone: return false;
    case SelectionExtra::kPeriod: return assign_number(word, spec.period) && spec.period > 0;
    case SelectionExtra::kBucketSize: return assign_number(word, spec.bucket_size) && spec.bucket_size > 0;
    case SelectionExtra::kIterations: return assign_number(word, spec.iterations) && spec.iterations > 0;
  }
  return false;
}

/// "signs", "dense=STEPS", "warm_up=STEPS".
bool set_option(std::string_view word, SelectionSpec& spec) {
  if (word == "signs") {
    spec.alternate_signs = true;
    return true;
  }
  const auto parts = split(word, '=');
  if (parts.size() != 2 || (parts[0] != "dense" && parts[0] != "warm_up")) return false;
  spec.warm_up = parts[0] == "dense" ? WarmUp::kDense : WarmUp::kExponential;
  return assign_number(parts[1], spec.warm_up_steps) && spec.warm_up_steps > 0;
}

}  // namespace

Status set_amount(std::string_view word, double& density, uint64_t& k) {
  if (const auto count = number_from_text<uint64_t>(word); count && *count >= 2) {
    k = *count;
    return {};
  }
  const auto share = number_from_text<double>(word);
  if (!share || !(*share > 0) || *share > 1)
    return refuse_selection(word, "a density in (0, 1] or a count of at least 2");
  density = *share;
  return {};
}

std::string selection_names() {
  std::string words;
  for (const SelectionInfo& info : selections()) {
    if (!words.empty()) words += ", ";
    words += std::string(info.name) + amount_word(info.amount) + extra_word(info.extra);
  }
  return words;
}

Result<SelectionSpec> selection_from_text(std::string_view text) {
  const std::vector<std::string_view> words = split(text, ':');
  const auto selection = selection_by_name(words[0]);
  if (!selection) return std::unexpected(selection.error());
  const SelectionInfo& info = *find_selection(*selection);
  const std::string wanted = "a selection: '" + std::string(info.name) + amount_word(info.amount) +
                             extra_word(info.extra) + (info.may_alternate_signs ? "[:signs]" : "") +
                             (info.amount == SelectionAmount::kNone ? "'" : "[:dense=STEPS|:warm_up=STEPS]'");
  SelectionSpec spec;
  spec.selection = *selection;
  // The default of the field is the period of threshold_reuse.
  if (*selection == Selection::kSampled) spec.period = kSampledPeriod;
  size_t next = 1;
  if (info.amount != SelectionAmount::kNone) {
    if (next == words.size()) return refuse_selection(text, wanted);
    if (!set_first(words[next], info.amount, spec)) return refuse_selection(words[next], wanted);
    ++next;
  }
  if (next < words.size() && set_second(words[next], info.extra, spec)) ++next;
  for (; next < words.size(); ++next) {
    if (!set_option(words[next], spec)) return refuse_selection(words[next], wanted);
  }
  if (auto valid = validate(spec); !valid) return std::unexpected(valid.error());
  return spec;
}

}  // namespace millrace
