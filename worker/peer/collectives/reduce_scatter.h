#pragma once

#include <memory>
#include <span>
#include <vector>

#include "worker/peer/collectives/allgather.h"
#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/collectives/result_memory.h"

namespace millrace::peer {

/// Divides the index range into consecutive slices, equal but for one index; where there are more slices than indices
/// some are empty.
class Slices {
 public:
  /// REQUIRES: count > 0.
  Slices(uint64_t dimension, uint32_t count) : dimension_(dimension), count_(count) {}

  uint32_t count() const { return count_; }
  uint64_t begin(uint32_t at) const { return at >= count_ ? dimension_ : dimension_ * at / count_; }
  uint64_t end(uint32_t at) const { return begin(at + 1); }
  /// Returns the dimension of a slice; 0 from count() on.
  uint64_t dimension(uint32_t at) const { return end(at) - begin(at); }
  /// Returns the boundaries: [count + 1], from 0 to the dimension.
  std::vector<uint64_t> bounds() const;

 private:
  uint64_t dimension_;
  uint32_t count_;
};

/// Says how slices are joined.
enum class JoinAs : uint8_t {
  kSmaller = 1,  ///< sparse while that is smaller
  kDense = 2,
};

/// Holds a rank's result of a reduce-scatter: its slice of the sum, and the codec's changes of its own contribution,
/// slice by slice. An empty slice has dimension 0.
struct OwnSlice {
  SharedStream sum{Stream::empty(0).view(), nullptr, 0};
  std::vector<Stream> returned;  ///< [size]; each of its slice's dimension, sparse; or empty: nothing is returned
  std::vector<Stream> added;     ///< the same, of Reduced::added
};

/// Returns an empty stream of returned values for each slice.
std::vector<Stream> no_returns(const Slices& slices);

/// Exchanges slices directly: every rank sends each other rank its slice, all at once. Each adds the slices that it
/// received, in the order of the ranks.
///
/// given    check_contribution() holds. The part of its own slice that a rank keeps is not coded.
/// Bytes    a rank: P - 1 messages, of (P - 1) / P of its entries where they are uniform.
/// Tags     first_tag.
/// Source   [SparCML19, 5.3.2] ("split").
Task<Result<OwnSlice>> split_and_combine(Channel& channel, Contribution given, const AllreduceSettings& settings,
                                         uint32_t first_tag);

/// Passes the slices around the ring; each rank adds its own part to the slice that it received.
///
/// given    check_contribution() holds. Only the slice that a rank sends first is a contribution, and coded as one.
/// form     kDense: all that travels is dense, and the sum; a sparse contribution is made dense slice by slice.
/// Bytes    a rank: P - 1 messages of partial sums of a slice.
/// Tags     [first_tag, first_tag + size).
/// Source   [PatarasukYuan09], on sparse slices.
Task<Result<OwnSlice>> ring_reduce_scatter(Channel& channel, Contribution given, const AllreduceSettings& settings,
                                           uint32_t first_tag, JoinAs form);

struct GatherOptions {
  uint32_t first_tag = 0;
  AllgatherWay way = AllgatherWay::kDoubling;
  JoinAs as = JoinAs::kSmaller;
};

/// Joins every rank's slice on every rank.
///
/// own      the rank's slice, ready to send, and what others decode of it; where the slice is empty, it is not looked
///          at.
/// slices   rank r has slice r; from count() on they have none.
/// memory   of the results of this allreduce.
/// Tags     [options.first_tag, options.first_tag + 32 + size).
/// Errors   as unpack() and allgather().
Task<Result<SharedStream>> gather_slices(Channel& channel, Packed own, Slices slices, const ReduceOp& op,
                                         GatherOptions options, ResultMemory& memory);

/// Gathers the results of a reduce-scatter on every rank: the end of an allreduce.
Task<Result<Reduced>> gather_sum(Channel& channel, OwnSlice mine, const AllreduceSettings& settings,
                                 GatherOptions options, ResultMemory& memory);

/// Streams of consecutive index ranges as one. Empty pieces (dimension 0) are allowed.
///
/// kSmaller  dense from dense_from_count() on, or where all pieces are; of a dense piece in a sparse sum the neutral
///           elements are left out.
/// out       an empty stream; its buffers are used.
/// Cost      one pass; entries that were not looked at are, while they are in the first-level cache.
/// Errors    of such entries: as unpack().
Result<Stream> join(const ReduceOp& op, std::span<const Piece> pieces, JoinAs as, Stream out);

/// Joins the returned values, slice by slice, into one sparse stream.
Stream joined_returns(uint64_t dimension, std::span<const Stream> returned);

}  // namespace millrace::peer
