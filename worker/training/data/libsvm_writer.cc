#include "worker/training/data/libsvm_writer.h"

#include <zlib.h>

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::training {
namespace {

constexpr size_t kFlushBytes = size_t{1} << 18;
constexpr int kGzipWindow = 15 + 16;  // zlib's way to say: a gzip wrapper
constexpr int kLevel = 3;             // the text is hashes: more effort wins little

void append(ByteBuffer& text, std::string_view piece) { text.insert(text.end(), piece.begin(), piece.end()); }

template <typename Number>
void append_number(ByteBuffer& text, Number value) {
  char digits[32];
  const char* end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  append(text, {digits, end});
}

}  // namespace

struct LibsvmWriter::Deflater {
  z_stream stream{};
  std::array<uint8_t, size_t{1} << 16> out{};

  Deflater() {
    const int code = deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY);
    MILLRACE_CHECK(code == Z_OK, code);
  }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;
  ~Deflater() { deflateEnd(&stream); }

  /// Compresses what stream.next_in holds into the file.
  Status drain(files::AtomicFile& file, int flush) {
    do {
      stream.next_out = out.data();
      stream.avail_out = static_cast<uInt>(out.size());
      deflate(&stream, flush);
      if (Status status = file.write(ByteSpan(out).first(out.size() - stream.avail_out)); !status) return status;
    } while (stream.avail_out == 0);
    return {};
  }
};

Result<LibsvmWriter> LibsvmWriter::create(const std::string& path) {
  auto file = files::AtomicFile::create(path);
  if (!file) return std::unexpected(file.error());
  return LibsvmWriter(std::move(*file), path.ends_with(".gz") ? std::make_unique<Deflater>() : nullptr);
}

LibsvmWriter::LibsvmWriter(files::AtomicFile file, std::unique_ptr<Deflater> deflater)
    : file_(std::move(file)), deflater_(std::move(deflater)) {}
LibsvmWriter::LibsvmWriter(LibsvmWriter&& other) noexcept = default;
LibsvmWriter::~LibsvmWriter() = default;

Status LibsvmWriter::row(int label, IndexSpan indices, std::span<const float> values) {
  MILLRACE_CHECK(indices.size() == values.size(), indices.size(), values.size());
  if (label > 0) append(text_, "+");
  append_number(text_, label);
  for (size_t at = 0; at < indices.size(); ++at) {
    append(text_, " ");
    append_number(text_, uint64_t{indices[at]} + 1);
    append(text_, ":");
    append_number(text_, values[at]);
  }
  append(text_, "\n");
  ++rows_;
  entries_ += indices.size();
  return text_.size() < kFlushBytes ? Status{} : flush();
}

Status LibsvmWriter::flush() {
  Status status;
  if (deflater_) {
    deflater_->stream.next_in = text_.data();
    deflater_->stream.avail_in = static_cast<uInt>(text_.size());
    status = deflater_->drain(file_, Z_NO_FLUSH);
  } else {
    status = file_.write(text_);
  }
  text_.clear();
  return status;
}

Status LibsvmWriter::commit() {
  if (Status status = flush(); !status) return status;
  if (deflater_) {
    if (Status status = deflater_->drain(file_, Z_FINISH); !status) return status;
  }
  return file_.commit();
}

}  // namespace millrace::training
