#include "kernels/select/registry.h"

namespace millrace {
namespace {

// "For smaller parameter sets such as biases and batch norm layers, we do not compress residuals or directly use
// radixSelect" [RedSync19, 2.1]. The largest bias of its networks (VGG16, AlexNet) has 4096 entries.
constexpr uint64_t kUncompressedUpTo = 4096;
// "We used trimmed top-k algorithm to compress layers in CNNs larger than 128KB" [RedSync19, 3.3]: this number of f32.
constexpr uint64_t kRadixUpTo = 128 * 1024 / 4;
// Threshold binary search "is suitable for large size layers, like hidden layers and softmax layers in LSTMs"
// [RedSync19, 2.1]. Trimmed is for "middle size layers, like convolutional layers". The paper has no size. The
// largest convolution of its networks has 2.4 M entries (3 x 3 x 512 x 512). The smallest hidden layer has 9 M (4 x
// 1500 x 1500). This constant is between them.
constexpr uint64_t kTrimmedUpTo = uint64_t{1} << 22;

SelectionId selection_at(uint64_t dimension, bool alternate_signs) {
  if (dimension <= kUncompressedUpTo) return SelectionId::kNone;
  if (dimension <= kRadixUpTo) return SelectionId::kRadix;
  if (dimension <= kTrimmedUpTo) return SelectionId::kTrimmed;
  // "LSTMs ... use sampled threshold binary search as selection for non-quantized RedSync, but use threshold binary
  // search for quantized RedSync" [RedSync19, 3.3]. "sampled threshold binary search selection cannot be used with
  // quantization" [RedSync19, 2.1.1].
  return alternate_signs ? SelectionId::kBinarySearch : SelectionId::kSampled;
}

/// Returns the selection that RedSync uses for a tensor of `dimension`.
///
/// up to 4,096 entries   none, without signs and warm-up: biases and batch norm layers, "we do not compress residuals".
/// up to 32,768          radix.
/// up to 2^22            trimmed.
/// above                 sampled; with alternating signs binary_search.
///
/// The last three take the amount, the signs and the warm-up from `spec`.
/// Source   [RedSync19, 2.1, 3.3]; DESIGN.md has the sentences.
SelectionSpec resolve_by_size(const SelectionSpec& spec, uint64_t dimension) {
  SelectionSpec chosen = spec;
  chosen.selection = selection_at(dimension, spec.alternate_signs);
  if (chosen.selection == SelectionId::kNone) return {};
  if (chosen.selection == SelectionId::kSampled) chosen.period = default_spec(chosen.selection).period;
  return chosen;
}

}  // namespace

SelectionEntry by_size_selection() {
  return {.info = {.selection = SelectionId::kBySize,
                   .name = "by_size",
                   .paper = "[RedSync19, 2.1, 3.3]",
                   .summary =
                       "by the tensor's size: everything as it is, radix, trimmed, sampled (with :signs binary_search)",
                   .parameters = kShareAlone,
                   .may_alternate_signs = true},
          .validate = validate_density_or_k,
          .make = nullptr,
          .resolve = resolve_by_size};
}

}  // namespace millrace
