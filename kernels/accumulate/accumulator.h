#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/accumulate/merge_pieces.h"
#include "kernels/base/result.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/select/select.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// Holds the sum of the streams that were added, without the entries that were taken out: a residual's arithmetic.
/// Sparse while the added streams are. Dense after a dense stream, or where a sum of two sparse streams is smaller so
/// [SparCML19, 5.1]; sparse again when everything was taken out.
///
/// Invariant  every index is in the sum once; values add up in the order of the calls, in f32.
/// Memory     sparse: 8 bytes an entry, twice while pieces are merged; dense: 4 bytes an index.
/// Limits     dimension in [1, 2^32].
/// Errors     those of a selection. Every stream must be well-formed and of this dimension (checked). Values are not
///            looked at.
/// Threads    one.
class Accumulator {
 public:
  explicit Accumulator(uint64_t dimension) : sum_(Stream::empty(dimension)) {}

  uint64_t dimension() const { return sum_.dimension; }
  bool is_dense() const { return sum_.dense; }
  /// Says whether nothing is stored. A dense sum of zeros is stored.
  bool is_empty() const { return sum_.count() == 0; }
  StreamView view() const { return sum_.view(); }
  /// Returns the stored values, by position in view().
  std::span<float> values() { return changed().values; }

  /// Adds the stream; its arrays become the sum's where that saves a pass.
  /// Cost   one pass over the entries of both; a dense sum: over those of the stream.
  void add(Stream&& stream);
  /// Adds factor * stream to a dense form of the sum, from index `begin` on.
  void add_to_dense(const StreamView& stream, float factor, uint64_t begin = 0);
  /// Adds factor * values to a dense sum, and collects largest() in the same pass (add_and_collect()).
  /// REQUIRES: is_dense().
  void add_and_collect(std::span<const float> values, float factor, uint64_t wanted);
  /// Returns all entries of view() from some magnitude on, and that view() is finite; null where add_and_collect() was
  /// not the last change, or collected none.
  const Candidates* largest() const { return has_largest_ ? &largest_ : nullptr; }
  /// Adds sparse streams of disjoint ranges, ascending, in one pass. REQUIRES: the sum is sparse.
  void merge(const std::vector<PlacedStream>& pieces);

  void make_dense();
  /// Makes a sparse sum dense that takes less memory so [SparCML19, 5.1].
  void make_dense_where_smaller();
  /// Takes the zeros out of a sparse sum.
  void drop_zeros();

  /// Takes all entries out, in their present form.
  Stream take_all() { return std::exchange(changed(), Stream::empty(sum_.dimension)); }
  /// Selects, and takes the selected entries out; sparse. Nothing is selected from an empty sum, and the selector keeps
  /// its state.
  ///
  /// context  without `largest`.
  /// Errors   as Selector::select(); nothing is taken.
  Result<Stream> take_selected(Selector& selector, SelectContext context);
  /// Takes out the entries at positions of view(), increasing; sparse. A dense sum has zeros in their place.
  Stream take_at(IndexSpan positions);
  /// Takes out the entries in [begin, end), indices local to begin; sparse. A dense sum becomes sparse.
  Stream take_range(uint64_t begin, uint64_t end);

 private:
  /// Returns the sum, to change it.
  Stream& changed() {
    has_largest_ = false;
    return sum_;
  }

  Stream sum_;     ///< every change of its entries is through changed()
  Stream merged_;  ///< target of merge(); the two are swapped afterwards
  Candidates largest_;
  bool has_largest_ = false;
};

}  // namespace millrace
