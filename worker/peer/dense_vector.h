#pragma once

#include "worker/peer/contribution.h"

namespace millrace::peer {

/// The settings of an algorithm on dense vectors: everything travels as it is, whatever the codecs for sparse streams.
template <typename T>
AllreduceSettings<T> without_codecs(AllreduceSettings<T> settings) {
  settings.wire = {};
  return settings;
}

/// The contribution as a dense vector, checked.
///
/// Errors  check_contribution()'s.
template <typename T>
Result<HeldStream<T>> dense_vector(HeldStream<T> own, const AllreduceSettings<T>& settings) {
  if (Status status = check_contribution(own.view, settings); !status) return std::unexpected(status.error());
  if (own.view.dense) return own;
  return HeldStream<T>::from(to_dense(settings.op, own.view));
}

}  // namespace millrace::peer
