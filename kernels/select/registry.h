#pragma once

#include <memory>
#include <string_view>

#include "kernels/select/select.h"

namespace millrace {

/// Describes a selection. Its file defines `SelectionEntry NAME_selection()`, and selection_list.h has the word.
struct SelectionEntry {
  SelectionInfo info;
  /// Refuses parameters of this selection that cannot be.
  Status (*validate)(const SelectionSpec& spec);
  /// Makes the selector, without warm-up or alternating signs. Null where `resolve` is not.
  /// REQUIRES: a valid spec, a dimension in [1, kDimensionMax].
  std::unique_ptr<Selector> (*make)(const SelectionSpec& spec, uint64_t dimension);
  /// Returns the selection that this one uses for a tensor of `dimension`. Null: itself, for every tensor.
  SelectionSpec (*resolve)(const SelectionSpec& spec, uint64_t dimension) = nullptr;
  /// Returns whether it surely selects every entry that is not 0. Null: it may omit entries with any parameters.
  bool (*takes_all)(const SelectionSpec& spec, uint64_t dimension) = nullptr;
  SelectionSpec defaults = {};  ///< of parameters that a text omits
};

inline std::string_view name_of(const SelectionEntry& entry) { return entry.info.name; }
inline SelectionId number_of(const SelectionEntry& entry) { return entry.info.selection; }

/// Returns the selection with the parameters that a text may omit. Of an unknown one: those of SelectionSpec.
SelectionSpec default_spec(SelectionId selection);

/// Makes the entry's selector, with alternating signs where the specification has them, without warm-up.
std::unique_ptr<Selector> make_signed(const SelectionEntry& entry, const SelectionSpec& spec, uint64_t dimension);

/// Checks selections by density or k: one of them must be there, density in (0, 1].
Status validate_density_or_k(const SelectionSpec& spec);

/// Returns whether k is the dimension: SelectionEntry::takes_all of selections that select k entries.
bool k_is_all(const SelectionSpec& spec, uint64_t dimension);

// Parameters that several selections have. A selection's file may define its own.

inline constexpr SelectionParameter kShareParameter = {
    .form = "DENSITY|COUNT",
    .amount = SelectionAmount::kShare,
    .set = [](std::string_view word,
              SelectionSpec& spec) { return set_amount(word, spec.density, spec.k).has_value(); },
    .value = [](const SelectionSpec& spec) { return spec.k != 0 ? SelectionNumber(spec.k) : spec.density; }};

inline constexpr SelectionParameter kPeriodParameter = {
    .form = "PERIOD",
    .set = [](std::string_view word, SelectionSpec& spec) { return set_count(word, spec.period); },
    .value = [](const SelectionSpec& spec) { return SelectionNumber(uint64_t{spec.period}); }};

inline constexpr SelectionParameter kShareAlone[] = {kShareParameter};
inline constexpr SelectionParameter kShareAndPeriod[] = {kShareParameter, kPeriodParameter};

}  // namespace millrace
