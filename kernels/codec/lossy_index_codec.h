#pragma once

#include "kernels/codec/codec.h"

namespace millrace {

/// An index codec that decodes as many indices as went in, but not all of them the same: it leaves out selected entries
/// for others ([DeepReduce21, 4], all policies but P0). For what goes up only: the sender of an update does not take
/// back what it left out.
class PickingIndexCodec : public IndexCodec {
 public:
  bool lossless() const final { return false; }

  /// True: the j-th value that went in comes back at the j-th index, whichever it was of (DeepReduce's naive filter).
  /// False: the value of a decoded index is its own.
  virtual bool by_position() const { return false; }
};

/// The codec as one of these; null: it keeps every selected entry.
inline const PickingIndexCodec* picking_codec(const IndexCodec& codec) {
  return dynamic_cast<const PickingIndexCodec*>(&codec);
}

}  // namespace millrace
