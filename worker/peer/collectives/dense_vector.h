#pragma once

#include "worker/peer/collectives/contribution.h"

namespace millrace::peer {

/// Returns the settings of an algorithm on dense vectors: everything travels uncoded, regardless of the codecs for
/// sparse streams.
inline AllreduceSettings without_codecs(AllreduceSettings settings) {
  settings.wire = {};
  return settings;
}

/// Returns the contribution as a dense vector, checked.
///
/// Errors  check_contribution()'s.
inline Result<SharedStream> dense_vector(const Contribution& given, const AllreduceSettings& settings) {
  if (Status status = check_contribution(given, settings); !status) return std::unexpected(status.error());
  if (given.own.view.dense) return given.own;
  return SharedStream::from(to_dense(settings.op, given.own.view));
}

}  // namespace millrace::peer
