#include "protocol/table/cluster_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "protocol/base/limits.h"
#include "protocol/base/text.h"

namespace millrace::protocol {
namespace {

std::string line_of(std::string_view text, size_t bytes_max) {
  return text.size() <= bytes_max && is_plain_text(text) ? std::string(text) : std::string();
}

/// Returns the lines after the first one; empty: the note is not of this version or has another number of lines.
std::vector<std::string_view> lines_of(std::string_view text, size_t count) {
  std::vector<std::string_view> lines;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  if (lines.size() != count + 1 || lines.front() != fmt::format("{}", kNotesVersion)) return {};
  lines.erase(lines.begin());
  return lines;
}

}  // namespace

std::string encode_process_note(const ProcessNote& note) {
  return fmt::format("{}\n{}\n{}\n{}", kNotesVersion, line_of(note.address, kAddressBytesMax),
                     line_of(note.http, kAddressBytesMax), line_of(note.software, kSoftwareBytesMax));
}

ProcessNote decode_process_note(std::string_view text) {
  const std::vector<std::string_view> lines = lines_of(text, 3);
  if (lines.empty()) return {};
  return {line_of(lines[0], kAddressBytesMax), line_of(lines[1], kAddressBytesMax),
          line_of(lines[2], kSoftwareBytesMax)};
}

std::string encode_drain_note(const DrainNote& note) {
  return fmt::format("{}\n{}\n{}", kNotesVersion, note.incarnation, line_of(note.refusal, kSentenceBytesMax));
}

std::optional<DrainNote> decode_drain_note(std::string_view text, uint64_t incarnation) {
  const std::vector<std::string_view> lines = lines_of(text, 2);
  if (lines.empty()) return std::nullopt;
  DrainNote note;
  const auto [end, fault] = std::from_chars(lines[0].data(), lines[0].data() + lines[0].size(), note.incarnation);
  if (fault != std::errc() || end != lines[0].data() + lines[0].size() || note.incarnation != incarnation)
    return std::nullopt;
  note.refusal = line_of(lines[1], kSentenceBytesMax);
  return note;
}

std::string key_of_lease(uint32_t shard) { return fmt::format("lease/{:04}", shard); }
std::string key_of_leaving(uint32_t shard) { return fmt::format("leaving/{:04}", shard); }
std::string key_of_drain(uint32_t shard) { return fmt::format("drain/{:04}", shard); }
std::string key_of_spare(uint64_t spare) { return fmt::format("spare/{:016x}", spare); }

}  // namespace millrace::protocol
