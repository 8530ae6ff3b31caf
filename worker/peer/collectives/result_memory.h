#pragma once

#include <memory>
#include <optional>
#include <span>

#include "worker/peer/channel/reduce_op.h"
#include "worker/peer/channel/stream_wire.h"

namespace millrace::peer {

/// Keeps the memory of an allreduce's last result, for the next one, once no holder of the last one is left. The kernel
/// takes longer to give fresh pages than it takes to fill them.
class ResultMemory {
 public:
  /// Returns an empty stream, with buffers that may have capacity.
  Stream take();
  /// Returns a dense stream of `dimension` values, which are not set; in large pages where the system has them.
  Stream take_dense(uint64_t dimension);
  /// Holds a result, and keeps it in mind. Not in groups larger than kKeptRanksMax.
  SharedStream hold(Stream&& result, uint32_t group_size);

  /// Takes, fills and holds a dense result of sparse pieces, one behind the other: neutral elements among their
  /// entries. Where the last result was of this kind, only its entries are reset to neutral. So filling a vector takes
  /// as long as its entries need.
  /// Errors   as unpack(), of pieces that were not looked at; nothing is held then.
  Result<SharedStream> share_scattered(const ReduceOp& op, std::span<const Piece> pieces, uint32_t group_size);

  /// Larger groups are simulated, many ranks to a process.
  static constexpr uint32_t kKeptRanksMax = 256;

 private:
  bool may_scatter_over(uint64_t dimension, float neutral) const;

  std::shared_ptr<Stream> last_;
  std::optional<IndexBuffer> written_;  ///< where the last result may differ from neutral_; none: anywhere
  float neutral_ = 0;
};

}  // namespace millrace::peer
