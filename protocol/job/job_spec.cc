#include "protocol/job/job_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "protocol/job/enum_words.h"
#include "protocol/job/job_spec_fields.h"

namespace millrace::protocol {
namespace {

std::string job_spec_text_of(const std::string& value) { return fmt::format("'{}'", value); }
std::string job_spec_text_of(bool value) { return value ? "on" : "off"; }
std::string job_spec_text_of(double value) { return fmt::format("{}", value); }
std::string job_spec_text_of(std::chrono::milliseconds value) { return fmt::format("{} ms", value.count()); }
template <HasEnumWords E>
std::string job_spec_text_of(E value) {
  return std::string(enum_word(value));
}
std::string job_spec_text_of(SelectionId value) { return std::string(selection_name(value)); }
std::string job_spec_text_of(Optimizer value) { return std::string(optimizer_name(value)); }
std::string job_spec_text_of(IndexCodecId value) {
  const IndexCodec* codec = find_index_codec(value);
  return codec == nullptr ? "none" : std::string(codec->name());
}
std::string job_spec_text_of(ValueCodecId value) {
  const ValueCodec* codec = find_value_codec(value);
  return codec == nullptr ? "unknown" : std::string(codec->name());
}
// Numbers only: an enum without words of its own does not compile.
template <typename T>
  requires std::is_integral_v<T>
std::string job_spec_text_of(T value) {
  return fmt::format("{}", value);
}

/// The field that its group is named for: "select: topk here", not "select: selection topk here".
template <typename T>
inline constexpr bool kNamesItsGroup = std::is_same_v<T, SelectionId> || std::is_same_v<T, Reselect> ||
                                       std::is_same_v<T, Momentum> || std::is_same_v<T, Optimizer>;

/// Lists every field as (name, readable value), so that two specifications can be compared field by field.
class Lister {
 public:
  struct Entry {
    std::string name;
    std::string value;
    bool is_words = false;
  };

  template <typename T>
  void field(std::string_view name, const T& value) {
    if constexpr (kNamesItsGroup<T>) name = {};
    entries_.push_back({fmt::format("{}{}{}", prefix_, name, name.empty() ? "" : " "), job_spec_text_of(value)});
  }
  void words(const OptionInfo& info, const std::string& text) {
    entries_.push_back({fmt::format("{}: ", info.name), text, true});
  }
  template <typename T>
  void option(const OptionInfo& info, const T& value) {
    field(info.name, value);
  }
  template <typename T, typename Visit>
  void text(const OptionInfo& info, const T& part, Visit visit) {
    group(info.name, part, visit);
  }
  template <typename T, typename Visit>
  void group(std::string_view name, const T& part, Visit visit) {
    const std::string outer = std::exchange(prefix_, fmt::format("{}{}: ", prefix_, name));
    visit(*this, part);
    prefix_ = outer;
  }
  template <typename T, typename Visit>
  void optional(std::string_view name, const std::optional<T>& part, Visit visit) {
    entries_.push_back({fmt::format("{} ", name), part ? "its own" : "the job's"});
    // Absent overrides are filled in, so that both lists have the same fields in the same places.
    group(name, part.value_or(T{}), visit);
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::string prefix_;
  std::vector<Entry> entries_;
};

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

/// Returns the first word of `ours` that `theirs` lacks, and the word of the same key in `theirs`.
std::string first_word_that_differs(std::string_view ours, std::string_view theirs) {
  const auto key_of = [](std::string_view word) { return word.substr(0, word.find('=')); };
  const std::vector<std::string_view> here = words_of(ours);
  const std::vector<std::string_view> there = words_of(theirs);
  for (const std::string_view word : here) {
    if (std::ranges::find(there, word) != there.end()) continue;
    const auto other = std::ranges::find(there, key_of(word), key_of);
    if (other == there.end()) return fmt::format("{} here, no {} there", word, key_of(word));
    return fmt::format("{} here, {} there", word, *other);
  }
  for (const std::string_view word : there) {
    if (std::ranges::find(here, word) == here.end()) return fmt::format("no {} here, {} there", key_of(word), word);
  }
  return "the same words in another order";
}

/// Returns the first field that differs, without those of words; empty: none.
std::string first_difference_of(const Lister& ours, const Lister& theirs) {
  for (size_t i = 0; i < ours.entries().size(); ++i) {
    const Lister::Entry& here = ours.entries()[i];
    const Lister::Entry& there = theirs.entries()[i];
    if (here.value == there.value || here.is_words) continue;
    return fmt::format("{}{} here, {} there", here.name, here.value, there.value);
  }
  return {};
}

}  // namespace

double denominator_of(Combine combine, size_t contributors, double weight_sum) {
  switch (combine) {
    case Combine::kSum: return 1;
    case Combine::kMean: return static_cast<double>(contributors);
    case Combine::kWeightedMean: return weight_sum;
  }
  return 1;
}

std::string first_difference(const JobSpec& ours, const JobSpec& theirs) {
  Lister here;
  Lister there;
  fields::visit_job(here, ours);
  fields::visit_job(there, theirs);
  if (std::string difference = first_difference_of(here, there); !difference.empty()) return difference;
  for (size_t i = 0; i < std::min(ours.tensors.size(), theirs.tensors.size()); ++i) {
    if (ours.tensors[i] == theirs.tensors[i]) continue;
    Lister tensor_here;
    Lister tensor_there;
    fields::visit_tensor(tensor_here, ours.tensors[i]);
    fields::visit_tensor(tensor_there, theirs.tensors[i]);
    if (ours.tensors[i].name != theirs.tensors[i].name) {
      return fmt::format("tensor {}: {}", i, first_difference_of(tensor_here, tensor_there));
    }
    return fmt::format("tensor '{}': {}", ours.tensors[i].name, first_difference_of(tensor_here, tensor_there));
  }
  if (ours.tensors.size() != theirs.tensors.size()) {
    return fmt::format("{} tensors here, {} there", ours.tensors.size(), theirs.tensors.size());
  }
  // Compared last: the recipe hashes values that other fields may name in words, such as the rows' dimension.
  if (ours.recipe != theirs.recipe) return "recipe: " + first_word_that_differs(ours.recipe, theirs.recipe);
  return "no difference";
}

}  // namespace millrace::protocol
