#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "worker/training/data/compressed_file.h"
#include "worker/training/data/text_source.h"

namespace millrace::training {
namespace {

constexpr int kGunzipWindow = MAX_WBITS + 16;  // of a gzip member, head and checksum included

/// Reads gzip, or passes plain text through, by the first bytes: a pipe is opened and read once. gzread() is no choice:
/// it ends silently where the bytes after a member are damaged.
class GzipOrPlain final : public TextSource {
 public:
  explicit GzipOrPlain(CompressedFile file) : file_(std::move(file)) {}
  ~GzipOrPlain() override {
    if (format_ == Format::kGzip) inflateEnd(&stream_);
  }

  Result<size_t> read(std::span<char> into) override {
    if (format_ == Format::kUnknown) {
      if (Status begun = begin(); !begun) return std::unexpected(begun.error());
    }
    if (format_ == Format::kPlain) return pass_through(into);
    // NOLINTNEXTLINE(bugprone-casting-through-void): bytes, as the library calls them
    stream_.next_out = static_cast<uint8_t*>(static_cast<void*>(into.data()));
    stream_.avail_out = static_cast<unsigned>(into.size());
    while (stream_.avail_out == into.size()) {
      if (Status filled = fill(); !filled) return std::unexpected(filled.error());
      if (!in_member_ && stream_.avail_in == 0) return size_t{0};
      if (Status status = in_member_ ? inflate_some() : between_members(); !status)
        return std::unexpected(status.error());
    }
    return into.size() - stream_.avail_out;
  }

 private:
  enum class Format : uint8_t { kUnknown, kPlain, kGzip };

  Status begin() {
    if (Status filled = fill(); !filled) return filled;
    const bool is_gzip = stream_.avail_in >= 2 && stream_.next_in[0] == 0x1F && stream_.next_in[1] == 0x8B;
    if (is_gzip && inflateInit2(&stream_, kGunzipWindow) != Z_OK)
      return fail(ErrorCode::kLimitExceeded, "no memory to decompress it");
    format_ = is_gzip ? Format::kGzip : Format::kPlain;
    in_member_ = is_gzip;
    return {};
  }

  /// Reads the next block, where all of the last one is taken.
  Status fill() {
    if (stream_.avail_in > 0 || ended_) return {};
    const auto block = file_.next();
    if (!block) return std::unexpected(block.error());
    ended_ = block->empty();
    stream_.next_in = block->data();
    stream_.avail_in = static_cast<unsigned>(block->size());
    return {};
  }

  Result<size_t> pass_through(std::span<char> into) {
    if (Status filled = fill(); !filled) return std::unexpected(filled.error());
    const unsigned bytes = static_cast<unsigned>(std::min<size_t>(into.size(), stream_.avail_in));
    if (bytes > 0) std::memcpy(into.data(), stream_.next_in, bytes);
    stream_.next_in += bytes;
    stream_.avail_in -= bytes;
    return size_t{bytes};
  }

  Status inflate_some() {
    const unsigned before = stream_.avail_out;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      in_member_ = false;
      return {};
    }
    if (code == Z_MEM_ERROR) return fail(ErrorCode::kLimitExceeded, "no memory to decompress it");
    if (code != Z_OK && code != Z_BUF_ERROR)
      return damaged(stream_.msg != nullptr ? stream_.msg : "no reason is known");
    if (ended_ && stream_.avail_out == before)
      return fail(ErrorCode::kMalformed, "the gzip data ends too early; the file is truncated");
    return {};
  }

  /// Begins the next member, or takes zeros that fill up a block of a tape: nothing may follow those.
  Status between_members() {
    padded_ = padded_ || *stream_.next_in == 0;
    if (!padded_) {
      in_member_ = inflateReset(&stream_) == Z_OK;
      return in_member_ ? Status() : damaged("the next member cannot be begun");
    }
    const std::span<const uint8_t> rest(stream_.next_in, stream_.avail_in);
    if (std::ranges::any_of(rest, [](uint8_t byte) { return byte != 0; }))
      return damaged("other bytes follow the zeros at its end");
    stream_.avail_in = 0;
    return {};
  }

  static std::unexpected<Error> damaged(const std::string& reason) {
    return fail(ErrorCode::kMalformed, "damaged gzip data (" + reason + ")");
  }

  CompressedFile file_;
  z_stream stream_ = {};
  Format format_ = Format::kUnknown;
  bool in_member_ = false;
  bool padded_ = false;  ///< a zero has followed a member
  bool ended_ = false;   ///< there is no more input
};

}  // namespace

Result<std::unique_ptr<TextSource>> open_gzip_or_plain(const std::string& path) {
  auto file = CompressedFile::open(path);
  if (!file) return std::unexpected(file.error());
  return std::make_unique<GzipOrPlain>(std::move(*file));
}

}  // namespace millrace::training
