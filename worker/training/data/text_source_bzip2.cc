#include <bzlib.h>

#include <string>
#include <utility>

#include "worker/training/data/compressed_file.h"
#include "worker/training/data/text_source.h"

namespace millrace::training {
namespace {

/// One stream after the other: parallel compressors write several.
class Bzip2Text final : public TextSource {
 public:
  explicit Bzip2Text(CompressedFile file) : file_(std::move(file)) {}
  ~Bzip2Text() override { end_stream(); }

  Result<size_t> read(std::span<char> into) override {
    stream_.next_out = into.data();
    stream_.avail_out = static_cast<unsigned>(into.size());
    while (stream_.avail_out == into.size()) {
      if (stream_.avail_in == 0 && !ended_) {
        const auto block = file_.next();
        if (!block) return std::unexpected(block.error());
        ended_ = block->empty();
        // NOLINTNEXTLINE(bugprone-casting-through-void): bytes, as the library calls them
        stream_.next_in = static_cast<char*>(static_cast<void*>(block->data()));
        stream_.avail_in = static_cast<unsigned>(block->size());
      }
      if (!in_stream_ && stream_.avail_in == 0) return size_t{0};
      if (Status status = step(); !status) return std::unexpected(status.error());
    }
    return into.size() - stream_.avail_out;
  }

 private:
  Status step() {
    if (!in_stream_) {
      if (BZ2_bzDecompressInit(&stream_, 0, 0) != BZ_OK)
        return fail(ErrorCode::kLimitExceeded, "no memory to decompress it");
      in_stream_ = true;
    }
    const unsigned before = stream_.avail_in + stream_.avail_out;
    const int code = BZ2_bzDecompress(&stream_);
    if (code == BZ_STREAM_END) {
      end_stream();
      return {};
    }
    if (code != BZ_OK) return fail(ErrorCode::kMalformed, "damaged bzip2 data (code " + std::to_string(code) + ")");
    if (ended_ && stream_.avail_in + stream_.avail_out == before)
      return fail(ErrorCode::kMalformed, "the bzip2 data ends too early; the file is truncated");
    return {};
  }

  void end_stream() {
    if (std::exchange(in_stream_, false)) BZ2_bzDecompressEnd(&stream_);
  }

  CompressedFile file_;
  bz_stream stream_ = {};
  bool in_stream_ = false;
  bool ended_ = false;  ///< there is no more input
};

}  // namespace

Result<std::unique_ptr<TextSource>> open_bzip2(const std::string& path) {
  auto file = CompressedFile::open(path);
  if (!file) return std::unexpected(file.error());
  return std::make_unique<Bzip2Text>(std::move(*file));
}

}  // namespace millrace::training
