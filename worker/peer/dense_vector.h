#pragma once

#include "worker/peer/contribution.h"

namespace millrace::peer {

/// The settings of an algorithm on dense vectors: everything travels as it is, whatever the codecs for sparse streams.
inline AllreduceSettings without_codecs(AllreduceSettings settings) {
  settings.wire = {};
  return settings;
}

/// The contribution as a dense vector, checked.
///
/// Errors  check_contribution()'s.
inline Result<HeldStream> dense_vector(HeldStream own, const AllreduceSettings& settings) {
  if (Status status = check_contribution(own.view, settings); !status) return std::unexpected(status.error());
  if (own.view.dense) return own;
  return HeldStream::from(to_dense(settings.op, own.view));
}

}  // namespace millrace::peer
