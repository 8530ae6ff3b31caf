#include "worker/training/exchange/error_feedback.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/accumulate/add_and_collect.h"
#include "kernels/base/random.h"
#include "kernels/reduce/reduce.h"
#include "protocol/job/step_sends.h"
#include "worker/peer/collectives/local_selection.h"

namespace millrace::training {

Result<ErrorFeedback> ErrorFeedback::make(const ErrorFeedbackOptions& options) {
  ErrorFeedback feedback(options);
  if (!options.select || options.select->selection == SelectionId::kNone) return feedback;
  const SelectionInfo* info = find_selection(options.select->selection);
  const SelectionUse refused = options.unbiased ? SelectionUse::kWithResidual : SelectionUse::kUnbiased;
  if (info != nullptr && info->use == refused) {
    return fail(ErrorCode::kInvalidArgument,
                "--select " + std::string(info->name) +
                    (options.unbiased
                         ? " sends the largest and keeps the rest for later, and --unbiased keeps nothing: take none, "
                           "or one that draws (random, gspar, gspar_closed, uniform)"
                         : " scales drawn values up in place of the entries that it leaves out, which may not be sent "
                           "later as well: add --unbiased"));
  }
  auto selector = make_selector(*options.select, options.dimension);
  if (!selector) return std::unexpected(selector.error());
  feedback.selector_ = std::move(*selector);
  return feedback;
}

void ErrorFeedback::add(const StreamView& stream, float sign) {
  if (stream.values.empty()) return;
  residual_.add_to_dense(stream, sign);
}

SharedStream ErrorFeedback::take_all() {
  Stream all = residual_.take_all();
  // An algorithm that selects expects a dense contribution; for others, zeros need not travel.
  if (options_.result == peer::ResultKind::kGlobalTopk) return SharedStream::from(std::move(all));
  return SharedStream::from(to_sparse(all.view()));
}

SelectContext ErrorFeedback::context_of(uint64_t step) const {
  constexpr uint64_t kDrawsOfSelection = 0x73656c;
  return {step, random_key(options_.seed, options_.rank, step, kDrawsOfSelection)};
}

Result<SharedStream> ErrorFeedback::take_selected(uint64_t step) {
  auto taken = residual_.take_selected(*selector_, context_of(step));
  if (!taken) return std::unexpected(taken.error());
  return SharedStream::from(std::move(*taken));
}

Result<SharedStream> ErrorFeedback::draw(const StreamView& gradient, uint64_t step) {
  IndexBuffer positions;
  Buffer<float> drawn;
  if (Status status = selector_->draw(gradient, context_of(step), positions, drawn); !status) {
    return std::unexpected(status.error());
  }
  Stream sent = peer::entries_at(gradient, positions);
  sent.values = std::move(drawn);
  return SharedStream::from(std::move(sent));
}

Result<SharedStream> ErrorFeedback::contribution(Stream&& gradient, uint64_t step) {
  if (!all_finite_on_threads(gradient.values)) return fail(ErrorCode::kNonFinite, "a gradient has NaN or infinity");
  if (is_whole(step)) return SharedStream::from(std::move(gradient));
  return contribution_of(gradient.view(), step);
}

Result<SharedStream> ErrorFeedback::contribution_of(const StreamView& gradient, uint64_t step) {
  if (draws()) return draw(gradient, step);
  if (gradient.dense && selector_ != nullptr) {
    residual_.make_dense();
    residual_.add_and_collect(gradient.values, 1.0F, selector_->largest_wanted());
  } else {
    add(gradient);
  }
  if (residual_.is_empty()) return SharedStream::from(Stream::empty(options_.dimension));
  return takes_all_of(step) ? take_all() : take_selected(step);
}

bool ErrorFeedback::is_whole(uint64_t step) const {
  const bool global = options_.result == peer::ResultKind::kGlobalTopk;
  return !draws() && !global && residual_.is_empty() && takes_all_of(step);
}

bool ErrorFeedback::takes_all_of(uint64_t step) const {
  return selector_ == nullptr ||
         protocol::step_sends(*options_.select, options_.dimension, step) == protocol::StepSends::kUncompressed;
}

SharedStream ErrorFeedback::rest() const {
  if (residual_.is_empty()) return {};
  const std::span<const float> values = residual_.view().values;
  return SharedStream::from(Stream{options_.dimension, true, {}, {values.begin(), values.end()}});
}

void ErrorFeedback::take_back(const SharedStream& own, const peer::Reduced& reduced) {
  add(reduced.added.view(), -1.0F);
  const bool drops = options_.codec_error == CodecError::kDrop && reduced.returns == peer::Returns::kCodecErrors;
  if (!drops) add(reduced.returned.view());
  if (options_.result != peer::ResultKind::kGlobalTopk || own.view.values.empty()) return;
  // The indices of the entries that were handed over: their values do not count here.
  add(not_carried(own.view, {own.view.dimension, false, reduced.contributed, {}}).view());
}

}  // namespace millrace::training
