#include "worker/training/data/text_source.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace millrace::training {
namespace {

using std::string_view_literals::operator""sv;

constexpr size_t kHeadBytes = 8;

struct ForeignFormat {
  std::string_view magic;
  std::string_view name;
  std::string_view advice;
};

constexpr ForeignFormat kForeign[] = {
    {"\x28\xB5\x2F\xFD"sv, "zstd data", "decompress it first (zstd -d)"},
    {"\x04\x22\x4D\x18"sv, "LZ4 data", "decompress it first (lz4 -d)"},
    {"PK\x03\x04"sv, "a zip archive", "unpack it first (unzip)"},
    {"7z\xBC\xAF\x27\x1C"sv, "a 7z archive", "unpack it first (7z x)"},
    {"PAR1"sv, "a Parquet file", "write its rows as LIBSVM text"},
    {"\x89HDF"sv, "an HDF5 file", "write its rows as LIBSVM text"},
    {"\xFF\xFE"sv, "UTF-16 text", "convert it (iconv -f UTF-16 -t UTF-8)"},
    {"\xFE\xFF"sv, "UTF-16 text", "convert it (iconv -f UTF-16 -t UTF-8)"},
};

struct CompressedFormat {
  std::string_view magic;
  std::string_view name;
  std::string_view suffix;
  std::string_view decompress;
  Result<std::unique_ptr<TextSource>> (*open)(const std::string& path);
};

constexpr CompressedFormat kCompressed[] = {
    {"\x1F\x8B"sv, "gzip", ".gz", "gunzip -k", open_gzip_or_plain},
    {"BZh"sv, "bzip2", ".bz2", "bunzip2 -k", open_bzip2},
    {"\xFD"
     "7zXZ\0"sv,
     "xz", ".xz", "unxz -k", open_xz},
};

bool begins(ByteSpan head, std::string_view magic) {
  return head.size() >= magic.size() && std::memcmp(head.data(), magic.data(), magic.size()) == 0;
}

const CompressedFormat* find_compression(ByteSpan head) {
  const auto at = std::ranges::find_if(kCompressed, [&](const auto& one) { return begins(head, one.magic); });
  return at == std::end(kCompressed) ? nullptr : at;
}

/// Returns the name of UTF-16 text without a mark, by the zeros in every other byte of ASCII text. Empty: it is none.
std::string_view unmarked_utf16(ByteSpan head) {
  if (head.size() < 4) return {};
  const auto zero_at = [&](size_t first) { return head[first] == 0 && head[first + 2] == 0; };
  const auto ascii_at = [&](size_t first) { return head[first] != 0 && head[first] < 0x80 && head[first + 2] != 0; };
  if (zero_at(1) && ascii_at(0)) return "UTF-16LE";
  if (zero_at(0) && ascii_at(1)) return "UTF-16BE";
  return {};
}

/// Returns the first bytes of a file. REQUIRES: it is a regular one; a pipe's bytes could not be read again.
ByteBuffer head_of(const std::string& path) {
  ByteBuffer head;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return head;
  head.resize(kHeadBytes);
  const ssize_t got = pread(file, head.data(), head.size(), 0);
  head.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  close(file);
  return head;
}

}  // namespace

Status refuse_foreign(ByteSpan head) {
  for (const ForeignFormat& one : kForeign) {
    if (!begins(head, one.magic)) continue;
    return fail(ErrorCode::kUnsupported, "it is " + std::string(one.name) + "; " + std::string(one.advice));
  }
  const std::string unmarked(unmarked_utf16(head));
  if (unmarked.empty()) return {};
  return fail(ErrorCode::kUnsupported, "it is UTF-16 text; convert it (iconv -f " + unmarked + " -t UTF-8)");
}

Compression compression_of(ByteSpan head) {
  const CompressedFormat* format = find_compression(head);
  if (format == nullptr) return {};
  return {std::string(format->name), std::string(format->decompress)};
}

Result<std::unique_ptr<TextSource>> open_text(const std::string& path) {
  struct stat there = {};
  if (stat(path.c_str(), &there) != 0) return fail(ErrorCode::kIo, path + ": " + std::strerror(errno));
  if (S_ISDIR(there.st_mode)) return fail(ErrorCode::kIo, path + ": " + std::strerror(EISDIR));
  const ByteBuffer head = S_ISREG(there.st_mode) ? head_of(path) : ByteBuffer();
  if (Status readable = refuse_foreign(head); !readable)
    return fail(readable.error().code, path + ": " + readable.error().message);
  const CompressedFormat* format = find_compression(head);
  for (const CompressedFormat& one : kCompressed) {
    if (!path.ends_with(one.suffix) || format == &one || !S_ISREG(there.st_mode)) continue;
    return fail(ErrorCode::kMalformed,
                fmt::format("{}: its name ends in {}, but it is not {} data; rename it or compress it", path,
                            one.suffix, one.name));
  }
  return format == nullptr ? open_gzip_or_plain(path) : format->open(path);
}

}  // namespace millrace::training
