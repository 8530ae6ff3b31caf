#include <string>
#include <utility>
#include <vector>

#include "kernels/base/registry.h"
#include "kernels/base/words.h"
#include "kernels/select/registry.h"

namespace millrace {
namespace {

/// Returns the parameters' forms: ":DENSITY|COUNT[:PERIOD]".
std::string parameter_forms(const SelectionInfo& info) {
  std::string words;
  for (const SelectionParameter& parameter : info.parameters) {
    const std::string form = ":" + std::string(parameter.form);
    words += words.empty() ? form : "[" + form + "]";
  }
  return words;
}

std::unexpected<Error> refuse_selection(std::string_view text, const std::string& wanted) {
  return fail(ErrorCode::kInvalidArgument, "'" + std::string(text) + "' is not " + wanted);
}

/// "signs", "dense=STEPS", "warm_up=STEPS"; signs once, and one of the two others.
bool set_option(std::string_view word, SelectionSpec& spec) {
  if (word == "signs") return !std::exchange(spec.alternate_signs, true);
  const auto parts = split(word, '=');
  if (parts.size() != 2 || (parts[0] != "dense" && parts[0] != "warm_up")) return false;
  if (spec.warm_up != WarmUp::kNone) return false;
  spec.warm_up = parts[0] == "dense" ? WarmUp::kDense : WarmUp::kExponential;
  return assign_number(parts[1], spec.warm_up_steps) && spec.warm_up_steps > 0;
}

}  // namespace

Status set_amount(std::string_view word, double& density, uint64_t& k) {
  if (const auto count = number_from_text<uint64_t>(word); count && *count >= 2) {
    k = *count;
    return {};
  }
  constexpr std::string_view kCount = "count=";
  if (word.starts_with(kCount)) {  // the form of 1, which alone is a density
    const auto count = number_from_text<uint64_t>(word.substr(kCount.size()));
    if (!count || *count == 0) return refuse_selection(word, "a count of at least 1");
    k = *count;
    return {};
  }
  const auto share = number_from_text<double>(word);
  if (!share || !(*share > 0) || *share > 1)
    return refuse_selection(word, "a density in (0, 1], a count of at least 2, or count=1");
  density = *share;
  return {};
}

bool set_count(std::string_view word, uint32_t& count) {
  const auto number = number_from_text<uint32_t>(word);
  if (!number || *number == 0) return false;
  count = *number;
  return true;
}

std::string selection_names() {
  return listed_texts(selections(),
                      [](const SelectionInfo& info) { return std::string(info.name) + parameter_forms(info); });
}

Result<SelectionSpec> selection_from_text(std::string_view text) {
  const std::vector<std::string_view> words = split(text, ':');
  const auto selection = selection_by_name(words[0]);
  if (!selection) return std::unexpected(selection.error());
  const SelectionInfo& info = *find_selection(*selection);
  const std::string wanted = "a selection: '" + std::string(info.name) + parameter_forms(info) +
                             (info.may_alternate_signs ? "[:signs]" : "") +
                             (info.parameters.empty() ? "'" : "[:dense=STEPS|:warm_up=STEPS]'");
  SelectionSpec spec = default_spec(*selection);
  size_t next = 1;
  for (const SelectionParameter& parameter : info.parameters) {
    const bool is_first = &parameter == &info.parameters.front();
    const bool is_set = next < words.size() && parameter.set(words[next], spec);
    if (is_first && !is_set) return refuse_selection(next < words.size() ? words[next] : text, wanted);
    if (!is_set) break;
    ++next;
  }
  for (; next < words.size(); ++next) {
    if (set_option(words[next], spec)) continue;
    const std::string_view key = words[next].substr(0, words[next].find('='));
    return refuse_selection(words[next], wanted + did_you_mean(key, {"signs", "dense", "warm_up"}));
  }
  if (auto valid = validate(spec); !valid) return std::unexpected(valid.error());
  return spec;
}

}  // namespace millrace
