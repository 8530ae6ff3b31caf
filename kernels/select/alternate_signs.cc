#include "kernels/select/alternate_signs.h"

#include <utility>

#include "kernels/select/sign_filter.h"

namespace millrace {
namespace {

template <typename T>
class AlternatingSelector final : public Selector<T> {
 public:
  explicit AlternatingSelector(std::unique_ptr<Selector<T>> selector) : selector_(std::move(selector)) {}

  Status select(const StreamView<T>& accumulator, const SelectContext& context, IndexBuffer& positions) override {
    filtered_.resize(accumulator.values.size());
    keep_sign<T>(accumulator.values, context.step % 2 == 0 ? Sign::kPositive : Sign::kNegative, filtered_);
    StreamView<T> one_sign = accumulator;
    one_sign.values = filtered_;
    return selector_->select(one_sign, context, positions);
  }

 private:
  std::unique_ptr<Selector<T>> selector_;
  Buffer<T> filtered_;
};

}  // namespace

template <typename T>
std::unique_ptr<Selector<T>> alternate_signs(std::unique_ptr<Selector<T>> selector) {
  return std::make_unique<AlternatingSelector<T>>(std::move(selector));
}

template std::unique_ptr<Selector<float>> alternate_signs<float>(std::unique_ptr<Selector<float>>);
template std::unique_ptr<Selector<double>> alternate_signs<double>(std::unique_ptr<Selector<double>>);

}  // namespace millrace
