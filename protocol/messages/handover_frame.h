#pragma once

#include <cstdint>

/// How shards see what one worker hands to another that comes to a job of path switch: bytes that they pass on, whose
/// first sixteen say what they are and how many. They travel as a Snapshot of a part that there is not: one behind the
/// last (protocol/wire/return_messages.md, "Snapshot").
namespace millrace::protocol {

/// "MLRHAND1"; the digit is the version (protocol/wire/versions.md).
inline constexpr uint64_t kHandoverMagic = 0x31444E4148524C4D;
inline constexpr uint64_t kHandoverHeadBytes = 16;  ///< u64 magic, u64 of all bytes
inline constexpr uint64_t kHandoverBytesMax = uint64_t{1} << 30;

}  // namespace millrace::protocol
