#include "worker/training/peers/line_range.h"

#include <algorithm>
#include <bit>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/check.h"

namespace millrace::training {
namespace {

/// Cuts lines out of blocks that follow each other.
class Lines {
 public:
  Lines(const LineShare& share, const std::function<Status(std::string_view)>& line, uint64_t line_bytes_max)
      : share_(share), line_(line), line_bytes_max_(line_bytes_max), searching_(share.begin > 0) {}

  /// Whether the line under way began before the share.
  bool searching() const { return searching_; }
  bool done() const { return done_; }

  /// The bytes of the file from `at` on.
  Status take(uint64_t at, std::string_view text) {
    if (searching_) {
      const size_t end = text.find('\n');
      if (end == std::string_view::npos) return {};
      text.remove_prefix(end + 1);
      at += end + 1;
      searching_ = false;
      begin_ = at;
    }
    for (;;) {
      if (begin_ >= share_.end) {
        done_ = true;
        return {};
      }
      const size_t end = text.find('\n');
      if (rest_.size() + std::min(end, text.size()) > line_bytes_max_) return too_long();
      if (end == std::string_view::npos) {
        rest_.append(text);
        return {};
      }
      if (Status status = hand_on(text.substr(0, end)); !status) return status;
      text.remove_prefix(end + 1);
      at += end + 1;
      begin_ = at;
    }
  }

  /// The last line of the file, where it has no newline.
  Status finish() { return done_ || rest_.empty() ? Status{} : line_(rest_); }

 private:
  Status hand_on(std::string_view end_of_line) {
    if (rest_.empty()) return line_(end_of_line);
    rest_.append(end_of_line);
    Status status = line_(rest_);
    rest_.clear();
    return status;
  }
  Status too_long() const {
    return fail(ErrorCode::kMalformed, "the line that begins at byte " + std::to_string(begin_) + " has more than " +
                                           std::to_string(line_bytes_max_) + " bytes");
  }

  const LineShare& share_;
  const std::function<Status(std::string_view)>& line_;
  uint64_t line_bytes_max_;
  uint64_t begin_ = 0;  ///< of the line under way
  std::string rest_;    ///< of it, what earlier blocks had
  bool searching_;
  bool done_ = false;
};

}  // namespace

LineShare line_share(uint64_t file_bytes, uint32_t rank, uint32_t ranks) {
  MILLRACE_CHECK(rank < ranks, rank, ranks);
  // Rank by rank, so that the product does not overflow.
  const uint64_t whole = file_bytes / ranks, rest = file_bytes % ranks;
  const auto begin_of = [&](uint64_t at) { return whole * at + rest * at / ranks; };
  return {file_bytes, begin_of(rank), begin_of(uint64_t{rank} + 1)};
}

Status for_each_line(const LineShare& share, const ReadAt& read, const std::function<Status(std::string_view)>& line,
                     const LineReadOptions& options) {
  if (share.begin >= share.end) return {};
  Lines lines(share, line, options.line_bytes_max);
  ByteBuffer block;
  // A line begins at the share's begin where the byte before it is a newline.
  for (uint64_t at = share.begin - (share.begin > 0 ? 1 : 0); at < share.file_bytes && !lines.done();) {
    const uint64_t limit = lines.searching() ? share.end : share.file_bytes;
    if (at >= limit) return {};
    block.resize(std::min(options.block_bytes, limit - at));
    if (Status status = read(at, block); !status) return status;
    const std::string_view text(std::bit_cast<const char*>(block.data()), block.size());
    if (Status status = lines.take(at, text); !status) return status;
    at += block.size();
    if (options.between) options.between();
  }
  return lines.finish();
}

}  // namespace millrace::training
