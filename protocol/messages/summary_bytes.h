#pragma once

#include "kernels/base/bytes.h"
#include "protocol/base/field_reader.h"
#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// Writes a summary for a file: that of a store's save, and of a worker's saved state. Little-endian:
///
///     summary = u32:workers worker* u32:epochs (u64:epoch u64:first_step)* f64:threshold u64:log_digest
///     worker  = u32:worker u64:incarnation u64:last_step u64:counted_mask u64:sequence f64:entered f64:carried
///             f64:lost
///               u32:lives (u64:incarnation u64:last_step)*
void put_summary(ByteWriter& writer, const Summary& summary);

/// Reads a summary of put_summary(). `in` is not good() after one that no message could carry (frame_decode.cc).
Summary get_summary(FieldReader& in);

}  // namespace millrace::protocol
