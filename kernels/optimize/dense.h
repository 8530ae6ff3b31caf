#pragma once

#include <cstdint>

#include "kernels/base/result.h"
#include "kernels/optimize/optimize.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// Applies a step as the textbooks have it. An entry that the sum lacks, or that is 0 in it, has a gradient of 0 and
/// changes like all others. Momentum and moments decay there, and still move the weight.
///
/// sgd, adagrad    the same as optimize(): they change nothing where a gradient is 0.
/// momentum, adam  another rule than optimize()'s lazy one. A worker follows it that puts a sparse sum into a dense
///                 gradient and calls its framework's optimizer. [OkTopk22, 5] does so: BERT's Adam after the
///                 sparse allreduce.
/// Cost            one pass over the dimension, no allocation.
///
/// Else as optimize().
Status optimize_dense(const OptimizerSpec& spec, const OptimizerArrays& arrays, const StreamView& sum,
                      double denominator, uint64_t step);

}  // namespace millrace
