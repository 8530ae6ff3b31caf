#include "kernels/select/alternate_signs.h"

#include <utility>

#include "kernels/select/sign_filter.h"

namespace millrace {
namespace {

class AlternatingSelector final : public Selector {
 public:
  explicit AlternatingSelector(std::unique_ptr<Selector> selector) : selector_(std::move(selector)) {}

  Status select(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions) override {
    filtered_.resize(accumulator.values.size());
    keep_sign(accumulator.values, context.step % 2 == 0 ? Sign::kPositive : Sign::kNegative, filtered_);
    StreamView one_sign = accumulator;
    one_sign.values = filtered_;
    return selector_->select(one_sign, {context.step, context.random}, positions);  // `largest` has both signs
  }

 private:
  std::unique_ptr<Selector> selector_;
  Buffer<float> filtered_;
};

}  // namespace

std::unique_ptr<Selector> alternate_signs(std::unique_ptr<Selector> selector) {
  return std::make_unique<AlternatingSelector>(std::move(selector));
}

}  // namespace millrace
