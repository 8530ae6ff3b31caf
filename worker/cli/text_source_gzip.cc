#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "worker/cli/text_source.h"

namespace millrace::cli {
namespace {

constexpr unsigned kGzipBufferBytes = 1U << 18;

struct CloseGz {
  void operator()(gzFile file) const { gzclose(file); }
};

class GzipOrPlain final : public TextSource {
 public:
  explicit GzipOrPlain(gzFile file) : file_(file) { gzbuffer(file, kGzipBufferBytes); }

  Result<size_t> read(std::span<char> into) override {
    const int got = gzread(file_.get(), into.data(), static_cast<unsigned>(into.size()));
    int code = Z_OK;
    const char* reason = gzerror(file_.get(), &code);
    if (got >= 0 && (got > 0 || code == Z_OK || code == Z_STREAM_END)) return static_cast<size_t>(got);
    if (code == Z_ERRNO) return fail(ErrorCode::kIo, std::strerror(errno));
    if (code == Z_BUF_ERROR) return fail(ErrorCode::kMalformed, "the gzip data ends too early; the file is truncated");
    return fail(ErrorCode::kMalformed, std::string("damaged gzip data (") + reason + ")");
  }

 private:
  std::unique_ptr<gzFile_s, CloseGz> file_;
};

}  // namespace

Result<std::unique_ptr<TextSource>> open_gzip_or_plain(const std::string& path) {
  errno = 0;
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr)
    return fail(ErrorCode::kIo, path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be opened"));
  return std::make_unique<GzipOrPlain>(file);
}

}  // namespace millrace::cli
