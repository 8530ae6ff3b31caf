#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/table/membership_table.h"

/// Notes for operators beside the membership: texts that no decision about a job depends on. Internal to the tables.
///
/// A note is lines of plain text; the first line is kNotesVersion. A build skips notes of another version. So notes
/// have a number of their own, and builds with and without them share a table.
namespace millrace::protocol {

/// Raised with every change of a note's key or lines (protocol/wire/versions.md). A new kind of note raises nothing.
inline constexpr uint64_t kNotesVersion = 1;

/// Returns the note of a process: version, address, HTTP address, software. Bytes that are not plain text are left out.
std::string encode_process_note(const ProcessNote& note);
/// Reads a process's note; an empty one if it is of another version or damaged.
ProcessNote decode_process_note(std::string_view text);

/// Returns the note of a drain: version, incarnation, refusal.
std::string encode_drain_note(const DrainNote& note);
/// Reads a drain's note. Empty: it is of another version or damaged, or about another start than `incarnation`.
std::optional<DrainNote> decode_drain_note(std::string_view text, uint64_t incarnation);

/// The keys of notes, without a table's prefix.
std::string key_of_lease(uint32_t shard);
std::string key_of_leaving(uint32_t shard);
std::string key_of_drain(uint32_t shard);
/// `spare`  tells the spares of a table apart.
std::string key_of_spare(uint64_t spare);

}  // namespace millrace::protocol
