#pragma once

#include <memory>
#include <utility>

#include "kernels/stream/stream.h"

namespace millrace::worker {

/// A stream that does not change any more and whoever holds this keeps alive: arrays of its own, or a container's bytes. Copying
/// shares.
struct HeldStream {
  StreamView<float> view;
  std::shared_ptr<const void> owner;

  static HeldStream from(Stream<float>&& stream) {
    auto kept = std::make_shared<const Stream<float>>(std::move(stream));
    return {kept->view(), kept};
  }
  /// A copy with arrays of its own.
  Stream<float> copy() const { return cut(view, 0, view.dimension); }
};

}  // namespace millrace::worker
