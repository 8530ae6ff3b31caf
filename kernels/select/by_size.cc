#include <utility>

#include "kernels/select/registry.h"

namespace millrace {
namespace {

// A tensor is sent whole up to this. "For smaller parameter sets such as biases and batch norm layers, we do not compress
// residuals or directly use radixSelect": the largest bias of its networks (VGG16, AlexNet) has 4096 entries.
constexpr uint64_t kDenseUpTo = 4096;
// "We used trimmed top-k algorithm to compress layers in CNNs larger than 128KB": so many f32.
constexpr uint64_t kRadixUpTo = 128 * 1024 / 4;
// "Threshold binary search based selection is suitable for large size layers, like hidden layers and softmax layers in
// LSTMs", trimmed for "middle size layers, like convolutional layers". No size is said: the largest convolution of its
// networks has 2.4 M entries (3 x 3 x 512 x 512), the smallest hidden layer 9 M (4 x 1500 x 1500). This is between them.
constexpr uint64_t kTrimmedUpTo = uint64_t{1} << 22;

Selection selection_for(uint64_t dimension) {
  if (dimension <= kDenseUpTo) return Selection::kNone;
  if (dimension <= kRadixUpTo) return Selection::kRadix;
  return dimension <= kTrimmedUpTo ? Selection::kTrimmed : Selection::kBinarySearch;
}

/// The selection that the paper has for a tensor of the size: everything, radix, trimmed or binary_search.
std::unique_ptr<Selector> make_by_size(const SelectionSpec& spec, uint64_t dimension) {
  SelectionSpec chosen{.selection = selection_for(dimension)};
  if (chosen.selection != Selection::kNone) {
    chosen.density = spec.density;
    chosen.k = spec.k;
  }
  return std::move(*make_selector(chosen, dimension));
}

}  // namespace

SelectionEntry by_size_selection() {
  return {{Selection::kBySize, "by_size", "RedSync 2.1", "none, radix, trimmed or binary_search, by the tensor's size",
           SelectionAmount::kShare, SelectionExtra::kNone, SelectionUse::kKeepsRest, true},
          validate_density_or_k,
          make_by_size};
}

}  // namespace millrace
