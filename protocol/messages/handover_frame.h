#pragma once

#include <cstdint>

/// The frame around the bytes that one worker gives to another that joins a job of path switch. Shards pass them on:
/// the first sixteen bytes hold their kind and their number. They travel as a Snapshot of a part that does not exist:
/// one behind the last (protocol/wire/return_messages.md, "Snapshot").
namespace millrace::protocol {

/// "MLRHAND1"; the digit is the version (protocol/wire/versions.md).
inline constexpr uint64_t kHandoverMagic = 0x31444E4148524C4D;
inline constexpr uint64_t kHandoverHeadBytes = 16;  ///< u64 magic, u64 of all bytes
inline constexpr uint64_t kHandoverBytesMax = uint64_t{1} << 30;

}  // namespace millrace::protocol
