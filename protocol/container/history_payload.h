#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/codec/history/index_history.h"
#include "protocol/container/container.h"
#include "protocol/job/job_spec.h"

namespace millrace {

/// Returns whether both sides of a job keep a history of the indices that the updates of a part of this dimension have
/// changed.
inline bool keeps_history(const protocol::JobSpec& spec, uint64_t dimension) {
  return spec.history && dimension != 0 && dimension <= kHistoryDimensionMax;
}

/// Returns whether the bytes claim to be a container that shorten_by_history() made. Hostile bytes; only the header is
/// looked at.
bool is_shortened(ByteSpan bytes);

/// Returns the container `plain` in the form for a receiver that has the same history. Its indices are coded against it
/// (protocol/wire/history.md), all else is unchanged. It is the same contribution: identity and hash stay those of
/// `plain`. The sender keeps `plain`, and restore_by_history() gives it to the receiver.
///
/// plain    a container that encode_container() made, sparse, of a lossless index codec and history.dimension().
/// indices  those of `plain`.
/// Errors   unsupported: dense, or another index codec. invalid_argument: not this dimension or count.
/// Threads  reentrant.
/// REQUIRES history.complete()
Result<ByteBuffer> shorten_by_history(ByteSpan plain, IndexSpan indices, const IndexHistory& history);

/// Returns about how many bytes restore_by_history() will return, by the header and the end of the bytes; 0: they are
/// no shortened container. Hostile bytes.
uint64_t restored_bytes_estimate(ByteSpan bytes);

/// Returns the plain container, bit for bit: the result has the checksum of the sender's container, or there is an
/// error.
///
/// bytes    hostile, any alignment.
/// limits   of the returned container, and of `bytes`.
/// Memory   the plain container and twice its indices, once limits and checksum agree.
/// Errors   as read_container_header(). stale: made against another history, or this one is not complete: the sender
///          repeats the plain bytes. malformed: a checksum, or the restored container is not the announced one.
///          unsupported: not shortened, an index codec that this build does not know or that is not lossless.
///          limit_exceeded.
/// Threads  reentrant.
Result<ByteBuffer> restore_by_history(ByteSpan bytes, const IndexHistory& history, const ContainerLimits& limits);

}  // namespace millrace
