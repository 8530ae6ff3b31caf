#include <roaring/roaring.h>

#include <algorithm>
#include <memory>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/bits/bitmap_words.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

using Bitmap = std::unique_ptr<roaring_bitmap_t, decltype(&roaring_bitmap_free)>;

constexpr uint32_t kCookie = 12'347;  // with containers of runs; their number - 1 is in the upper half
constexpr uint32_t kCookieWithoutRuns = 12'346;
constexpr size_t kOffsetsFrom = 4;    // containers from which a code with runs has offsets
constexpr uint32_t kArrayMax = 4096;  // entries of an array; more are a bitmap
constexpr size_t kBitmapBytes = 8192;

/// Holds a container's head in the code: the upper half of its indices, and how many there are.
struct Container {
  uint32_t key = 0;
  uint32_t count = 0;
  bool runs = false;
};

/// Reads the portable format (github.com/RoaringBitmap/RoaringFormatSpec). CRoaring writes it, but does not read it
/// here, since it believes the counts in the bytes. (In 0.2.66, it writes out as many entries as a container of runs or
/// a bitmap has.)
class Parser {
 public:
  Parser(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices)
      : reader_(bytes), dimension_(dimension), count_(count), indices_(indices) {}

  bool parse() {
    indices_.clear();
    Buffer<Container> containers;
    if (!take_header(containers)) return false;
    uint64_t promised = 0;
    for (const Container& container : containers) promised += container.runs ? 0 : container.count;
    if (promised > count_) return false;
    for (const Container& container : containers) {
      const bool taken = container.runs                 ? take_runs(container)
                         : container.count <= kArrayMax ? take_array(container)
                                                        : take_bitmap(container);
      if (!taken) return false;
    }
    return reader_.remaining() == 0 && indices_.size() == count_;
  }

 private:
  bool take_header(Buffer<Container>& containers) {
    const auto cookie = reader_.get<uint32_t>();
    if (!cookie) return false;
    const bool with_runs = (*cookie & 0xffff) == kCookie;
    uint64_t number = (*cookie >> 16) + 1;
    ByteSpan runs;
    if (with_runs) {
      const auto flags = reader_.get_bytes((number + 7) / 8);
      if (!flags) return false;
      runs = *flags;
    } else {
      const auto stated = reader_.get<uint32_t>();
      if (*cookie != kCookieWithoutRuns || !stated || *stated > 65'536) return false;
      number = *stated;
    }
    for (uint64_t c = 0; c < number; ++c) {
      const auto key = reader_.get<uint16_t>();
      const auto less_one = reader_.get<uint16_t>();
      if (!key || !less_one || (c > 0 && *key <= containers.back().key)) return false;
      if (uint64_t{*key} << 16 >= dimension_) return false;
      containers.push_back({*key, uint32_t{*less_one} + 1, with_runs && (runs[c / 8] >> (c % 8) & 1) != 0});
    }
    // Where each container begins: nothing that their sizes do not say.
    if (with_runs && number < kOffsetsFrom) return true;
    return reader_.get_bytes(number * sizeof(uint32_t)).has_value();
  }

  /// Room for `more` entries, if that many can still come. Memory grows with the entries found.
  uint32_t* grow(uint64_t more, uint64_t slack = 0) {
    const size_t done = indices_.size();
    if (more > count_ - done) return nullptr;
    if (indices_.capacity() < done + more + slack) {
      indices_.reserve(std::max<uint64_t>(done + more, std::min<uint64_t>(count_, 2 * done)) + slack);
    }
    indices_.resize(done + more + slack);
    return indices_.data() + done;
  }

  bool take_array(const Container& container) {
    const auto bytes = reader_.get_bytes(uint64_t{container.count} * sizeof(uint16_t));
    uint32_t* const out = bytes ? grow(container.count) : nullptr;
    if (out == nullptr) return false;
    int32_t last = -1;
    bool increasing = true;
    for (uint32_t j = 0; j < container.count; ++j) {
      const int32_t low = (*bytes)[2 * j] | (*bytes)[2 * j + 1] << 8;
      increasing = increasing && low > last;
      last = low;
      out[j] = container.key << 16 | static_cast<uint32_t>(low);
    }
    return increasing;
  }

  bool take_bitmap(const Container& container) {
    const auto bytes = reader_.get_bytes(kBitmapBytes);
    if (!bytes || count_bits(*bytes) != container.count) return false;
    uint32_t* const out = grow(container.count, kExpandSlack);
    if (out == nullptr) return false;
    expand_bits(*bytes, out);
    for (uint32_t j = 0; j < container.count; ++j) out[j] |= container.key << 16;
    indices_.resize(indices_.size() - kExpandSlack);
    return true;
  }

  bool take_runs(const Container& container) {
    const auto runs = reader_.get<uint16_t>();
    const auto bytes = runs ? reader_.get_bytes(uint64_t{*runs} * 4) : std::nullopt;
    if (!bytes) return false;
    uint64_t left = container.count;
    uint32_t next = 0;
    for (ByteReader run(*bytes); run.remaining() > 0;) {
      const uint32_t first = *run.get<uint16_t>();
      const uint32_t length = *run.get<uint16_t>() + 1u;
      if (first < next || first + length > 65'536 || length > left) return false;
      uint32_t* const out = grow(length);
      if (out == nullptr) return false;
      for (uint32_t j = 0; j < length; ++j) out[j] = (container.key << 16) + first + j;
      next = first + length;
      left -= length;
    }
    return left == 0;
  }

  ByteReader reader_;
  uint64_t dimension_;
  uint64_t count_;
  IndexBuffer& indices_;
};

class RoaringIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{12}; }
  std::string_view name() const override { return "roaring"; }
  std::string_view paper() const override { return "[Roaring18]: Roaring bitmaps, portable format; CRoaring"; }
  bool lossless() const override { return true; }

  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    const uint64_t containers = std::min((dimension + 65'535) / 65'536, count);
    return 8 + 8 * containers + std::min(2 * count, containers * kBitmapBytes);
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions&, ByteBuffer& out,
                IndexBuffer*) const override {
    MILLRACE_CHECK(indices.empty() || indices.back() < dimension, dimension);
    const Bitmap bitmap(roaring_bitmap_of_ptr(indices.size(), indices.data()), roaring_bitmap_free);
    MILLRACE_CHECK(bitmap != nullptr, indices.size());
    roaring_bitmap_run_optimize(bitmap.get());
    const size_t used = out.size();
    const size_t bytes = roaring_bitmap_portable_size_in_bytes(bitmap.get());
    out.resize(used + bytes);
    Buffer<char> code(bytes);
    roaring_bitmap_portable_serialize(bitmap.get(), code.data());
    std::copy(code.begin(), code.end(), out.begin() + static_cast<std::ptrdiff_t>(used));
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (count > dimension || !Parser(bytes, dimension, count, indices).parse() ||
        (count > 0 && indices.back() >= dimension)) {
      return fail(ErrorCode::kMalformed,
                  "roaring: not a bitmap of the stated number of indices in the portable format");
    }
    return {};
  }
};

}  // namespace

const IndexCodec& roaring_index_codec() {
  static const RoaringIndexCodec codec;
  return codec;
}

}  // namespace millrace
