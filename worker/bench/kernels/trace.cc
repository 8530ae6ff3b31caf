#include "worker/bench/kernels/trace.h"

#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/base/words.h"
#include "kernels/stream/stream.h"

namespace millrace::bench {
namespace {

constexpr uint32_t kMemberMagic = 0x04034b50;  // a local header of ZIP (APPNOTE 4.3.7)
constexpr uint32_t kSizeIsElsewhere = 0xffffffff;
constexpr uint16_t kZip64 = 1;  // the extra field that it is in
constexpr std::string_view kArray = "accumulator.npy";

/// A member of the archive: its bytes are [begin, begin + bytes) of the file.
struct Member {
  std::string name;
  uint16_t flags = 0;
  uint16_t method = 0;
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

class Archive {
 public:
  explicit Archive(const std::string& path) : path_(path), file_(path, std::ios::binary) {}
  bool open() const { return file_.is_open(); }

  bool read_at(uint64_t at, void* to, uint64_t bytes) {
    file_.clear();
    file_.seekg(static_cast<std::streamoff>(at));
    file_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    return file_.good();
  }

  /// The member whose header is at `at`; none where there is no such header.
  std::optional<Member> member_at(uint64_t at) {
    constexpr size_t kHeaderBytes = 30;
    ByteBuffer header(kHeaderBytes);
    if (!read_at(at, header.data(), header.size())) return std::nullopt;
    ByteReader reader(header);
    if (*reader.get<uint32_t>() != kMemberMagic) return std::nullopt;
    Member member;
    reader.get<uint16_t>();  // version
    member.flags = *reader.get<uint16_t>();
    member.method = *reader.get<uint16_t>();
    reader.get<uint64_t>();  // time, date, CRC
    member.bytes = *reader.get<uint32_t>();
    reader.get<uint32_t>();  // uncompressed
    const uint16_t name_bytes = *reader.get<uint16_t>();
    const uint16_t extra_bytes = *reader.get<uint16_t>();
    member.name.resize(name_bytes);
    ByteBuffer extra(extra_bytes);
    if (!read_at(at + kHeaderBytes, member.name.data(), name_bytes)) return std::nullopt;
    if (extra_bytes > 0 && !read_at(at + kHeaderBytes + name_bytes, extra.data(), extra_bytes)) return std::nullopt;
    if (member.bytes == kSizeIsElsewhere) member.bytes = long_size(extra).value_or(kSizeIsElsewhere);
    member.begin = at + kHeaderBytes + name_bytes + extra_bytes;
    return member;
  }

  std::unexpected<Error> malformed(const std::string& what) const {
    return fail(ErrorCode::kMalformed, "trace '" + path_ + "': " + what);
  }

 private:
  /// The compressed size in the extra field of a member over 4 GiB, or of one that was not known to be smaller.
  static std::optional<uint64_t> long_size(ByteSpan extra) {
    ByteReader reader(extra);
    while (true) {
      const auto id = reader.get<uint16_t>();
      const auto bytes = reader.get<uint16_t>();
      if (!id || !bytes) return std::nullopt;
      const auto field = reader.get_bytes(*bytes);
      if (!field) return std::nullopt;
      if (*id != kZip64) continue;
      ByteReader sizes(*field);
      sizes.get<uint64_t>();
      return sizes.get<uint64_t>();
    }
  }

  std::string path_;
  std::ifstream file_;
};

/// Holds the contents of an NPY header of a two-dimensional array of f32 (numpy.lib.format, versions 1 and 2).
struct ArrayShape {
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t header_bytes = 0;
};

std::optional<ArrayShape> parse_shape(std::string_view text) {
  if (text.find("'descr': '<f4'") == std::string_view::npos ||
      text.find("'fortran_order': False") == std::string_view::npos)
    return std::nullopt;
  constexpr std::string_view kShape = "'shape': (";
  const size_t at = text.find(kShape);
  if (at == std::string_view::npos) return std::nullopt;
  text = text.substr(at + kShape.size());
  const auto parts = split(text.substr(0, text.find(')')), ',');
  if (parts.size() != 2 || parts[1].empty() || parts[1][0] != ' ') return std::nullopt;
  const auto rows = number_from_text<uint64_t>(parts[0]);
  const auto columns = number_from_text<uint64_t>(parts[1].substr(1));
  if (!rows || !columns || *rows == 0 || *columns == 0 || *columns > kDimensionMax) return std::nullopt;
  return ArrayShape{*rows, *columns, 0};
}

std::optional<ArrayShape> read_shape(Archive& archive, const Member& member) {
  constexpr std::array<uint8_t, 6> kMagic = {0x93, 'N', 'U', 'M', 'P', 'Y'};
  std::array<uint8_t, 12> start{};
  if (member.bytes < start.size() || !archive.read_at(member.begin, start.data(), start.size())) return std::nullopt;
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0 || start[6] < 1 || start[6] > 2) return std::nullopt;
  const bool first_version = start[6] == 1;
  uint32_t text_bytes = 0;
  std::memcpy(&text_bytes, &start[8], first_version ? 2 : 4);
  const uint64_t text_at = first_version ? 10 : 12;
  constexpr uint32_t kTextMax = 4096;
  if (text_bytes > kTextMax || text_at + text_bytes > member.bytes) return std::nullopt;
  std::string text(text_bytes, ' ');
  if (!archive.read_at(member.begin + text_at, text.data(), text_bytes)) return std::nullopt;
  auto shape = parse_shape(text);
  if (!shape) return std::nullopt;
  shape->header_bytes = text_at + text_bytes;
  const uint64_t row_bytes = shape->columns * sizeof(float);
  const uint64_t array_bytes = member.bytes - shape->header_bytes;
  if (array_bytes / row_bytes != shape->rows || array_bytes % row_bytes != 0) return std::nullopt;
  return shape;
}

}  // namespace

Result<Buffer<float>> read_trace(const std::string& path, uint32_t worker) {
  Archive archive(path);
  if (!archive.open()) return fail(ErrorCode::kIo, "trace '" + path + "' cannot be opened");
  uint64_t at = 0;
  while (const auto member = archive.member_at(at)) {
    constexpr uint16_t kSizeBehind = 8;
    if ((member->flags & kSizeBehind) != 0 || member->method != 0) return archive.malformed("is compressed");
    if (member->bytes > std::numeric_limits<int64_t>::max() - member->begin) break;
    at = member->begin + member->bytes;
    if (member->name != kArray) continue;
    const auto shape = read_shape(archive, *member);
    if (!shape) return archive.malformed("'accumulator' is not f32 [workers, n]");
    if (worker >= shape->rows) {
      return fail(ErrorCode::kInvalidArgument, "trace '" + path + "' has workers 0 to " +
                                                   std::to_string(shape->rows - 1) + ", not " + std::to_string(worker));
    }
    if (shape->columns > kTraceColumnsMax)
      return fail(ErrorCode::kLimitExceeded, "trace '" + path + "': n is over 2^28, the most that is benched");
    const uint64_t row_bytes = shape->columns * sizeof(float);
    float last = 0;  // is there before memory for the row is taken
    const uint64_t row_at = member->begin + shape->header_bytes + worker * row_bytes;
    if (!archive.read_at(row_at + row_bytes - sizeof(last), &last, sizeof(last)))
      return archive.malformed("is cut off");
    Buffer<float> row(shape->columns);
    if (!archive.read_at(row_at, row.data(), row_bytes)) return archive.malformed("cannot be read");
    return row;
  }
  return archive.malformed("no array 'accumulator' as numpy.savez writes it");
}

}  // namespace millrace::bench
