#pragma once

#include "kernels/codec/codec.h"

namespace millrace {

/// Decodes as many indices as were encoded, but not all of them the same: an index codec that replaces selected entries
/// by others. See [DeepReduce21, 4], all policies but P0. For contributions only: the sender of an update does not take
/// back the entries that it left out.
class PickingIndexCodec : public IndexCodec {
 public:
  bool lossless() const final { return false; }

  /// Returns whether the j-th encoded value belongs to the j-th decoded index, regardless of its own index
  /// (DeepReduce's naive filter). False: the value of a decoded index is its own.
  virtual bool by_position() const { return false; }
};

/// Returns the codec as one of these; null: it keeps every selected entry.
inline const PickingIndexCodec* picking_codec(const IndexCodec& codec) {
  return dynamic_cast<const PickingIndexCodec*>(&codec);
}

}  // namespace millrace
