#include "kernels/select/registry.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/select/alternate_signs.h"
#include "kernels/select/by_size.h"
#include "kernels/select/warm_up.h"

namespace millrace {

// One line a selection.
#define MILLRACE_SELECTIONS(X) \
  X(none_selection)            \
  X(top_k_selection)           \
  X(threshold_selection)       \
  X(threshold_reuse_selection) \
  X(bucket_top_k_selection)    \
  X(trimmed_selection)         \
  X(binary_search_selection)   \
  X(sampled_selection)         \
  X(radix_selection)           \
  X(by_size_selection)         \
  X(gaussian_selection)        \
  X(random_selection)          \
  X(gspar_selection)           \
  X(gspar_closed_selection)    \
  X(uniform_selection)

#define MILLRACE_DECLARE(name) SelectionEntry name();
MILLRACE_SELECTIONS(MILLRACE_DECLARE)
#undef MILLRACE_DECLARE

namespace {

#define MILLRACE_COUNT(name) +1
constexpr size_t kSelectionCount = MILLRACE_SELECTIONS(MILLRACE_COUNT);
#undef MILLRACE_COUNT

const std::array<SelectionEntry, kSelectionCount>& entries() {
#define MILLRACE_CALL(name) name(),
  static const std::array<SelectionEntry, kSelectionCount> all = {{MILLRACE_SELECTIONS(MILLRACE_CALL)}};
#undef MILLRACE_CALL
  return all;
}

Result<SelectionEntry> entry_of(Selection selection) {
  for (const SelectionEntry& entry : entries()) {
    if (entry.info.selection == selection) return entry;
  }
  return fail(ErrorCode::kUnsupported, "unknown selection number " + std::to_string(static_cast<int>(selection)));
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
  static const auto infos = [] {
    std::array<SelectionInfo, kSelectionCount> all;
    std::transform(entries().begin(), entries().end(), all.begin(), [](const SelectionEntry& e) { return e.info; });
    return all;
  }();
  return infos;
}

Result<Selection> selection_by_name(std::string_view name) {
  std::string known;
  for (const SelectionInfo& info : selections()) {
    if (info.name == name || (!info.alias.empty() && info.alias == name)) return info.selection;
    known += known.empty() ? "" : ", ";
    known += info.name;
  }
  return fail(ErrorCode::kInvalidArgument, "unknown selection '" + std::string(name) + "'; known are " + known);
}

const SelectionInfo* find_selection(Selection selection) {
  const auto found = std::ranges::find(selections(), selection, &SelectionInfo::selection);
  return found == selections().end() ? nullptr : &*found;
}

std::string_view selection_name(Selection selection) {
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

Status validate(const SelectionSpec& spec) {
  const auto entry = entry_of(spec.selection);
  if (!entry) return std::unexpected(entry.error());
  if (spec.alternate_signs && !entry->info.may_alternate_signs) {
    return fail(ErrorCode::kInvalidArgument, std::string(entry->info.name) + " takes no alternating signs");
  }
  if (auto valid = validate_warm_up(entry->info, spec); !valid) return valid;
  return entry->validate(spec);
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
  const auto entry = entry_of(spec.selection);
  if (!entry) return std::unexpected(entry.error());
  if (auto valid = validate(spec); !valid) return std::unexpected(valid.error());
  if (dimension == 0 || dimension > kDimensionMax) {
    return fail(ErrorCode::kInvalidArgument, "a tensor's dimension is between 1 and 2^32");
  }
  if (spec.selection == Selection::kBySize) return make_selector(resolved_by_size(spec, dimension), dimension);
  return spec.warm_up == WarmUp::kNone ? make_signed(*entry, spec, dimension) : warm_up(*entry, spec, dimension);
}

}  // namespace millrace
