#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// The selections. Each is one file in this folder; select/registry.cc lists them.
enum class Selection : uint8_t {
  kNone = 0,            ///< everything stored is sent (naturally sparse gradients)
  kTopK = 1,            ///< exact top-k by magnitude
  kThreshold = 2,       ///< |x| >= a fixed threshold (Strom)
  kThresholdReuse = 3,  ///< exact threshold once a period, reused in between (Ok-Topk 3.1.3)
  kBucketTopK = 4,      ///< k of every 512 consecutive indices (SparCML 8.3)
};

/// Which selection, and its parameters. Part of a job's specification, overridable per tensor.
struct SelectionSpec {
  Selection selection = Selection::kNone;
  double density = 0;          ///< of the dimension, in (0, 1]; used when k is 0
  uint64_t k = 0;              ///< entries a tensor and step; 0: from density, rounded up
  double threshold = 0;        ///< kThreshold only
  uint32_t period = 32;        ///< kThresholdReuse: steps between exact evaluations
  uint32_t bucket_size = 512;  ///< kBucketTopK; k of a bucket is density * bucket_size rounded up, at least 1

  bool operator==(const SelectionSpec&) const = default;
};

/// k for a tensor of `dimension`: spec.k, or density * dimension rounded up; at most dimension, at least 1.
uint64_t k_of(const SelectionSpec& spec, uint64_t dimension);

struct SelectContext {
  uint64_t step = 0;
  RandomKey random = {};  ///< for randomized selections
};

/// One tensor's selection with whatever state it carries from step to step (a reused threshold). Not shared by threads.
template <typename T>
class Selector {
 public:
  virtual ~Selector() = default;

  /// Selects entries of the accumulator.
  ///
  /// accumulator  dense or sparse view; of a sparse one only stored entries can be selected.
  /// positions    out: positions into accumulator.values, strictly increasing (of a dense view these are the indices).
  /// Order        ties: lower index first. Zeros are never selected.
  /// Errors       non_finite: the accumulator holds NaN or infinity; nothing is selected, state unchanged.
  virtual Status select(const StreamView<T>& accumulator, const SelectContext& context, IndexBuffer& positions) = 0;
};

struct SelectionInfo {
  Selection selection;
  std::string_view name;     ///< "topk": the command line's and the job specification's word
  std::string_view paper;    ///< "SparCML 8.3"
  std::string_view summary;  ///< one line for --help
};

/// Every selection this build knows.
std::span<const SelectionInfo> selections();
Result<Selection> selection_by_name(std::string_view name);
std::string_view selection_name(Selection selection);

/// Refuses parameters that cannot be: density outside (0, 1], threshold not positive or not finite, bucket_size 0 ...
Status validate(const SelectionSpec& spec);

/// Errors   as validate().
template <typename T>
Result<std::unique_ptr<Selector<T>>> make_selector(const SelectionSpec& spec, uint64_t dimension);

}  // namespace millrace
