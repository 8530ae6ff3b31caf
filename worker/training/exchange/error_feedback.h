#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/accumulate/accumulator.h"
#include "kernels/select/select.h"
#include "millrace/options.h"
#include "worker/peer/collectives/allreduce.h"

namespace millrace::training {

struct ErrorFeedbackOptions {
  uint64_t dimension = 0;
  std::optional<SelectionSpec> select;  ///< before the allreduce; none: everything, or the algorithm's own selection
  uint64_t seed = 0;                    ///< of a selection that draws: another draw on every rank and in every step
  uint32_t rank = 0;
  /// The algorithm takes only the entries of a contribution that are in the global top-k (ResultKind::kGlobalTopk).
  peer::ResultKind result = peer::ResultKind::kExactSum;
  CodecError codec_error = CodecError::kRetain;
  /// The selection draws the contribution, and no entry stays for later. REQUIRES: codec_error dropped, result an exact
  /// sum.
  bool unbiased = false;
};

/// Makes a rank's contribution to an allreduce in each step, and keeps the residual: error feedback around any
/// algorithm of the registry. No value is lost or counted twice, regardless of the number of steps in flight. A
/// contribution leaves the residual at once, and the entries that were not handed over return with the result
/// (Reduced).
///
/// Unbiased: a selection draws values whose expectation is the gradient. The other entries are lost: the drawn values
/// are scaled up for them, and a residual would add them a second time.
///
/// Memory   the residual is a dense vector from the first value on that stays; sparse gradients summed exactly need
///          none.
/// Threads  one.
/// Source   [SparCML19, algorithm 1] (quantized TopK SGD); unbiased: [GSpar18, algorithm 1, line 4].
class ErrorFeedback {
 public:
  /// Errors   invalid_argument: a selection that draws, without `unbiased`; one that keeps the rest, with it; one that
  ///          cannot be.
  static Result<ErrorFeedback> make(const ErrorFeedbackOptions& options);

  /// Adds the gradient to the residual, and takes this step's contribution out of it. An uncompressed step contributes
  /// the whole residual.
  /// Errors   non_finite: NaN or infinity in the gradient.
  Result<SharedStream> contribution(Stream&& gradient, uint64_t step);
  /// Does the same with a gradient that stays the caller's. REQUIRES: its values are finite, and !is_whole(step).
  Result<SharedStream> contribution_of(const StreamView& gradient, uint64_t step);
  /// Says whether this step's contribution is the gradient itself, as it was handed in.
  bool is_whole(uint64_t step) const;
  /// Returns the residual beside the last contribution: a copy, of dimension 0 while the residual is empty. An index
  /// codec that sends more than the selected entries takes their values from it (peer::Contribution::rest). take_back()
  /// subtracts them.
  SharedStream rest() const;
  /// Ends the step's allreduce: `own` is this rank's contribution to it.
  void take_back(const SharedStream& own, const peer::Reduced& reduced);

  /// Adds back a part of a contribution that was not handed over after all: it is sent later.
  void give_back(const StreamView& stream) { add(stream); }

  /// Returns the residual: [dimension], or empty while nothing stayed.
  std::span<const float> residual() const { return residual_.view().values; }
  /// Returns the state of the selection (Selector::retained()).
  Retained retained() const { return selector_ ? selector_->retained() : Retained{}; }
  /// Errors  invalid_argument. Nothing changes then.
  Status restore_retained(std::span<const uint64_t> retained) {
    return selector_ ? selector_->restore_retained(retained) : RetainedReader(retained).end();
  }
  /// Hands it out and forgets it; sparse.
  Stream take_residual() { return to_sparse(residual_.take_all().view()); }

 private:
  explicit ErrorFeedback(const ErrorFeedbackOptions& options) : options_(options), residual_(options.dimension) {}
  void add(const StreamView& stream, float sign = 1.0F);
  SelectContext context_of(uint64_t step) const;
  bool takes_all_of(uint64_t step) const;
  bool draws() const { return options_.unbiased && selector_ != nullptr; }
  Result<SharedStream> draw(const StreamView& gradient, uint64_t step);
  SharedStream take_all();
  Result<SharedStream> take_selected(uint64_t step);

  ErrorFeedbackOptions options_;
  std::unique_ptr<Selector> selector_;
  Accumulator residual_;  ///< dense while it is not empty
};

}  // namespace millrace::training
