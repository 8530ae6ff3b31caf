#pragma once

#include <optional>
#include <string>

#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "millrace/peer.h"
#include "worker/training/exchange/training_options.h"

/// An allreduce and its parameters as one text: NAME[:K][:PARAMETER=VALUE]...
///
/// NAME       of the registry: millrace.peers.algorithms() lists them.
/// K          entries that it keeps, a density or a count, of algorithms that take a k: "oktopk:0.01".
/// PARAMETER  thresholds_period, boundaries_period, boundaries of oktopk; quantizer of the split allgathers.
namespace millrace::python {

/// Holds the parts of such a text.
struct AlgorithmChoice {
  peers::AlgorithmInfo info;
  std::optional<SelectionSpec> k;  ///< topk of the text's K
  peers::Oktopk oktopk;
  std::optional<CodecSpec> quantizer;
};

/// Reads the text.
/// Errors  JobError invalid_argument: an unknown name, with the nearest one; a parameter or a K that the algorithm does
///         not take.
AlgorithmChoice algorithm_from_text(const std::string& text);

/// Returns the choice in the form of the library. Errors  JobError invalid_argument: a K is missing.
peers::Algorithm algorithm_of(const AlgorithmChoice& choice);

/// Sets the choice in options of an exchange. A K of the text replaces the options' selection.
void set_algorithm(training::OptimizerOptions& options, const AlgorithmChoice& choice);

}  // namespace millrace::python
