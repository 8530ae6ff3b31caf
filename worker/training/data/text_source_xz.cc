#include <lzma.h>

#include <string>
#include <utility>

#include "worker/training/data/compressed_file.h"
#include "worker/training/data/text_source.h"

namespace millrace::training {
namespace {

/// One stream after the other: parallel compressors write several.
class XzText final : public TextSource {
 public:
  explicit XzText(CompressedFile file) : file_(std::move(file)) {}
  ~XzText() override { lzma_end(&stream_); }

  Status begin() {
    constexpr uint64_t kMemoryMax = uint64_t{1} << 30;  // xz -9 takes 65 MiB; a head may ask for anything
    if (lzma_stream_decoder(&stream_, kMemoryMax, LZMA_CONCATENATED) == LZMA_OK) return {};
    return fail(ErrorCode::kLimitExceeded, "no memory to decompress it");
  }

  Result<size_t> read(std::span<char> into) override {
    // NOLINTNEXTLINE(bugprone-casting-through-void): bytes, as the library calls them
    stream_.next_out = static_cast<uint8_t*>(static_cast<void*>(into.data()));
    stream_.avail_out = into.size();
    while (stream_.avail_out == into.size() && !done_) {
      if (stream_.avail_in == 0 && !ended_) {
        const auto block = file_.next();
        if (!block) return std::unexpected(block.error());
        ended_ = block->empty();
        stream_.next_in = block->data();
        stream_.avail_in = block->size();
      }
      const lzma_ret code = lzma_code(&stream_, ended_ ? LZMA_FINISH : LZMA_RUN);
      done_ = code == LZMA_STREAM_END;
      if (code != LZMA_OK && !done_) return std::unexpected(error_of(code));
    }
    return into.size() - stream_.avail_out;
  }

 private:
  static Error error_of(lzma_ret code) {
    if (code == LZMA_BUF_ERROR) return {ErrorCode::kMalformed, "the xz data ends too early; the file is truncated"};
    if (code == LZMA_MEM_ERROR || code == LZMA_MEMLIMIT_ERROR)
      return {ErrorCode::kLimitExceeded, "decompressing it takes more than 1 GiB of memory"};
    return {ErrorCode::kMalformed, "damaged xz data (code " + std::to_string(code) + ")"};
  }

  CompressedFile file_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ended_ = false;  ///< there is no more input
  bool done_ = false;   ///< all has been given out, or is in the caller's hands
};

}  // namespace

Result<std::unique_ptr<TextSource>> open_xz(const std::string& path) {
  auto file = CompressedFile::open(path);
  if (!file) return std::unexpected(file.error());
  auto text = std::make_unique<XzText>(std::move(*file));
  if (Status begun = text->begin(); !begun) return fail(begun.error().code, path + ": " + begun.error().message);
  return text;
}

}  // namespace millrace::training
