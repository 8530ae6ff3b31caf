#include "kernels/select/registry.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/registry.h"
#include "kernels/base/words.h"
#include "kernels/select/alternate_signs.h"
#include "kernels/select/selection_list.h"
#include "kernels/select/warm_up.h"

namespace millrace {
namespace {

const auto& selection_registry() {
#define MILLRACE_LISTED(word) word##_selection(),
  static const Registry registry = {MILLRACE_SELECTIONS(MILLRACE_LISTED)};
#undef MILLRACE_LISTED
  return registry;
}

}  // namespace

uint64_t k_of(const SelectionSpec& spec, uint64_t dimension) {
  uint64_t k = spec.k;
  if (k == 0) {
    const double wanted = std::ceil(std::clamp(spec.density, 0.0, 1.0) * static_cast<double>(dimension));
    k = static_cast<uint64_t>(wanted);
  }
  return std::min(std::max<uint64_t>(k, 1), dimension);
}

uint64_t bucket_k_of(const SelectionSpec& spec, uint64_t dimension) {
  const double density = spec.density > 0 ? spec.density : static_cast<double>(spec.k) / static_cast<double>(dimension);
  return k_of({.density = density}, spec.bucket_size);
}

std::span<const SelectionInfo> selections() {
  static const auto infos = infos_of(selection_registry());
  return infos;
}

Result<SelectionId> selection_by_name(std::string_view name) {
  for (const SelectionInfo& info : selections()) {
    if (info.name == name || (!info.alias.empty() && info.alias == name)) return info.selection;
  }
  const std::vector<std::string> known = texts_of(selections(), std::mem_fn(&SelectionInfo::name));
  return fail(ErrorCode::kInvalidArgument, "unknown selection '" + std::string(name) + "'; known are " +
                                               listed_texts(known, std::identity()) + did_you_mean(name, known));
}

const SelectionInfo* find_selection(SelectionId selection) {
  const SelectionEntry* entry = selection_registry().with_number(selection);
  return entry == nullptr ? nullptr : &entry->info;
}

std::string_view selection_name(SelectionId selection) {
  const SelectionInfo* info = find_selection(selection);
  return info == nullptr ? "unknown" : info->name;
}

std::string_view warm_up_name(WarmUp value) {
  switch (value) {
    case WarmUp::kNone: return "none";
    case WarmUp::kDense: return "dense";
    case WarmUp::kExponential: return "exponential";
  }
  return "unknown";
}

Status validate_density_or_k(const SelectionSpec& spec) {
  if (spec.k != 0) return {};
  if (!(spec.density > 0 && spec.density <= 1)) {
    return fail(ErrorCode::kInvalidArgument, "selection needs k, or a density in (0, 1]");
  }
  return {};
}

bool k_is_all(const SelectionSpec& spec, uint64_t dimension) { return k_of(spec, dimension) == dimension; }

Status validate(const SelectionSpec& spec) {
  const SelectionEntry* entry = selection_registry().with_number(spec.selection);
  if (entry == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "unknown selection number " + std::to_string(static_cast<int>(spec.selection)));
  }
  if (spec.alternate_signs && !entry->info.may_alternate_signs) {
    return fail(ErrorCode::kInvalidArgument, std::string(entry->info.name) + " takes no alternating signs");
  }
  if (auto valid = validate_warm_up(entry->info, spec); !valid) return valid;
  return entry->validate(spec);
}

SelectionSpec default_spec(SelectionId selection) {
  const SelectionEntry* entry = selection_registry().with_number(selection);
  SelectionSpec spec = entry == nullptr ? SelectionSpec{} : entry->defaults;
  spec.selection = selection;
  return spec;
}

SelectionSpec resolved_by_size(const SelectionSpec& spec, uint64_t dimension) {
  const SelectionEntry* entry = selection_registry().with_number(spec.selection);
  return entry == nullptr || entry->resolve == nullptr ? spec : entry->resolve(spec, dimension);
}

bool chooses_by_size(SelectionId selection) {
  const SelectionEntry* entry = selection_registry().with_number(selection);
  return entry != nullptr && entry->resolve != nullptr;
}

bool takes_all(const SelectionSpec& spec, uint64_t dimension) {
  const SelectionEntry* entry = selection_registry().with_number(spec.selection);
  return entry != nullptr && entry->takes_all != nullptr && entry->takes_all(spec, dimension);
}

Status Selector::draw(const StreamView&, const SelectContext&, IndexBuffer& positions, Buffer<float>& values) {
  positions.clear();
  values.clear();
  return fail(ErrorCode::kUnsupported, "this selection is not unbiased");
}

std::unique_ptr<Selector> make_signed(const SelectionEntry& entry, const SelectionSpec& spec, uint64_t dimension) {
  auto selector = entry.make(spec, dimension);
  return spec.alternate_signs ? alternate_signs(std::move(selector)) : std::move(selector);
}

Result<std::unique_ptr<Selector>> make_selector(const SelectionSpec& spec, uint64_t dimension) {
  if (auto valid = validate(spec); !valid) return std::unexpected(valid.error());
  if (dimension == 0 || dimension > kDimensionMax) {
    return fail(ErrorCode::kInvalidArgument, "a tensor's dimension is between 1 and 2^32");
  }
  const SelectionEntry& entry = *selection_registry().with_number(spec.selection);
  if (entry.resolve != nullptr) return make_selector(entry.resolve(spec, dimension), dimension);
  return spec.warm_up == WarmUp::kNone ? make_signed(entry, spec, dimension) : warm_up(entry, spec, dimension);
}

}  // namespace millrace
