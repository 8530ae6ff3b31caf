#include "kernels/select/warm_up.h"

#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "kernels/select/top_k.h"

namespace millrace {
namespace {

constexpr double kStageFactor = 0.25;  // [RedSync19, appendix C]: 25 %, 6.25 %, 1.5625 %, 0.4 %, 0.1 %

double density_of(const SelectionSpec& spec, uint64_t dimension) {
  return spec.k == 0 ? spec.density : static_cast<double>(k_of(spec, dimension)) / static_cast<double>(dimension);
}

class WarmUpSelector final : public Selector {
 public:
  WarmUpSelector(const SelectionEntry& entry, const SelectionSpec& spec, uint64_t dimension)
      : entry_(entry), spec_(spec), dimension_(dimension) {}

  Status select(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions) override {
    Selector* const selector = selector_of(context.step);
    if (selector == nullptr) return select_all(accumulator, positions);
    return selector->select(accumulator, context, positions);
  }

  /// The stage's of the last step.
  uint64_t largest_wanted() const override { return selector_ == nullptr ? 0 : selector_->largest_wanted(); }

  Status draw(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions,
              Buffer<float>& values) override {
    Selector* const selector = selector_of(context.step);
    if (selector != nullptr) return selector->draw(accumulator, context, positions, values);
    values.clear();
    if (auto done = select_all(accumulator, positions); !done) return done;
    values.resize(positions.size());
    for (size_t i = 0; i < positions.size(); ++i) values[i] = accumulator.values[positions[i]];
    return {};
  }

  /// The stage's density (0: the specification's own), and the state of its selector. Empty: no step was selected.
  Retained retained() const override {
    if (selector_ == nullptr) return {};
    Retained out{std::bit_cast<uint64_t>(density_.value_or(0))};
    append_list(out, selector_->retained());
    return out;
  }

  Status restore_retained(std::span<const uint64_t> retained) override {
    if (retained.empty()) {
      selector_.reset();
      return {};
    }
    RetainedReader reader(retained);
    const double density = std::bit_cast<double>(reader.next(0, std::bit_cast<uint64_t>(1.0)));
    const std::span<const uint64_t> of_stage = reader.list();
    if (Status status = reader.end(); !status) return status;
    const std::optional<double> stage = density == 0 ? std::nullopt : std::optional(density);
    std::unique_ptr<Selector> selector = of_density(stage);
    if (Status status = selector->restore_retained(of_stage); !status) return status;
    selector_ = std::move(selector);
    density_ = stage;
    return {};
  }

 private:
  /// nullptr: everything is sent.
  Selector* selector_of(uint64_t step) {
    const std::optional<double> density = warm_up_density(spec_, dimension_, step);
    if (density == 1.0) return nullptr;
    if (selector_ == nullptr || density != density_) {
      selector_ = of_density(density);
      density_ = density;
    }
    return selector_.get();
  }

  std::unique_ptr<Selector> of_density(std::optional<double> density) const {
    SelectionSpec spec = spec_;
    if (density) {
      spec.density = *density;
      spec.k = 0;
    }
    return make_signed(entry_, spec, dimension_);
  }

  static Status select_all(const StreamView& accumulator, IndexBuffer& positions) {
    return select_threshold(accumulator.values, std::numeric_limits<float>::denorm_min(), accumulator.count(),
                            positions);
  }

  SelectionEntry entry_;
  SelectionSpec spec_;
  uint64_t dimension_;
  std::unique_ptr<Selector> selector_;
  std::optional<double> density_;  ///< of selector_; none: the specification's own
};

}  // namespace

std::optional<double> warm_up_density(const SelectionSpec& spec, uint64_t dimension, uint64_t step) {
  if (step >= spec.warm_up_steps || spec.warm_up == WarmUp::kNone) return std::nullopt;
  if (spec.warm_up == WarmUp::kDense) return 1;
  const double density = density_of(spec, dimension);
  uint64_t stages = 0;
  for (double stage = kStageFactor; stage > density; stage *= kStageFactor) ++stages;
  if (stages == 0) return std::nullopt;
  double now = kStageFactor;
  for (uint64_t at = step * stages / spec.warm_up_steps; at > 0; --at) now *= kStageFactor;
  return now;
}

Status validate_warm_up(const SelectionInfo& info, const SelectionSpec& spec) {
  if ((spec.warm_up == WarmUp::kNone) != (spec.warm_up_steps == 0)) {
    return fail(ErrorCode::kInvalidArgument, "a warm-up has at least 1 step, and no warm-up has none");
  }
  if (spec.warm_up == WarmUp::kNone) return {};
  if (info.selection == SelectionId::kNone) {
    return fail(ErrorCode::kInvalidArgument, "select none sends everything as it is: it takes no warm-up");
  }
  if (spec.warm_up == WarmUp::kExponential && info.amount() != SelectionAmount::kShare) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(info.name) + " has no density that a warm-up could come down to; use dense=STEPS");
  }
  return {};
}

std::unique_ptr<Selector> warm_up(const SelectionEntry& entry, const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<WarmUpSelector>(entry, spec, dimension);
}

}  // namespace millrace
