#include "worker/training/peers/read_shared_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "worker/peer/group/group_gather.h"
#include "worker/training/data/libsvm.h"
#include "worker/training/data/text_source.h"
#include "worker/training/exchange/group_agreement.h"

namespace millrace::training {
namespace {

/// Refuses other files than plain text: only that can be read in parts.
Status refuse_what_is_no_text(const SharedFile& file) {
  std::array<uint8_t, 8> first{};
  const auto head = std::span(first).first(std::min<uint64_t>(file.bytes, first.size()));
  if (head.empty()) return {};
  if (Status status = file.read(0, head); !status) return status;
  if (Status status = refuse_foreign(head); !status)
    return fail(status.error().code, file.name + ": " + status.error().message);
  const Compression compression = compression_of(head);
  if (compression.name.empty()) return {};
  return fail(ErrorCode::kUnsupported, file.name + ": it is " + compression.name +
                                           " data, which cannot be read in parts; decompress it first (" +
                                           compression.decompress + ")");
}

Result<LibsvmRows> read_rows(peer::PeerGroup& group, const SharedFile& file, const LibsvmOptions& how) {
  if (Status status = refuse_what_is_no_text(file); !status) return std::unexpected(status.error());
  const LineShare share = line_share(file.bytes, group.rank(), group.size());
  const std::string name =
      share.begin == 0 ? file.name : file.name + " (lines from byte " + std::to_string(share.begin) + " on)";
  LibsvmParser parser(name, how);
  LineReadOptions options;
  options.line_bytes_max = kLibsvmLineBytesMax;
  options.between = [&group] { group.make_progress(); };
  Status status =
      for_each_line(share, file.read, [&parser](std::string_view line) { return parser.line(line); }, options);
  if (!status) return std::unexpected(status.error());
  return std::move(parser).take_rows();
}

/// Returns the properties of the whole file, from the rows that each rank has read.
Result<LibsvmRows> whole_of(peer::PeerGroup& group, const LibsvmRows& rows) {
  constexpr size_t kClassesAt = 4;
  std::vector<uint64_t> own = {rows.rows, rows.largest_index, rows.entries_left_out, rows.classes.size(), 0, 0};
  const size_t width = own.size();
  for (size_t i = 0; i < rows.classes.size(); ++i) own[kClassesAt + i] = std::bit_cast<uint64_t>(rows.classes[i]);
  const auto all = peer::gather<uint64_t>(group, "rows and classes", std::move(own));
  if (!all) return std::unexpected(all.error());
  LibsvmRows whole;
  for (size_t at = 0; at < all->size(); at += width) {
    whole.rows += (*all)[at];
    whole.largest_index = std::max(whole.largest_index, (*all)[at + 1]);
    whole.entries_left_out += (*all)[at + 2];
    for (size_t i = 0; i < (*all)[at + 3]; ++i)
      whole.classes.push_back(std::bit_cast<double>((*all)[at + kClassesAt + i]));
  }
  std::ranges::sort(whole.classes);
  const auto repeated = std::ranges::unique(whole.classes);
  whole.classes.erase(repeated.begin(), repeated.end());
  return whole;
}

}  // namespace

Result<Dataset> read_share(peer::PeerGroup& group, const SharedFile& file, const LibsvmOptions& options) {
  const auto lengths = peer::gather<uint64_t>(group, "length of " + file.name, {file.bytes});
  if (!lengths) return std::unexpected(lengths.error());
  const auto other = std::ranges::find_if(*lengths, [&](uint64_t bytes) { return bytes != lengths->front(); });
  if (other != lengths->end()) {
    return fail(ErrorCode::kJobMismatch, file.name + ": it has " + std::to_string(lengths->front()) +
                                             " bytes on rank 0 and " + std::to_string(*other) + " on rank " +
                                             std::to_string(other - lengths->begin()));
  }
  Result<LibsvmRows> rows = read_rows(group, file, options);
  if (Status status = agree(group, "read " + file.name, rows ? Status{} : std::unexpected(rows.error())); !status) {
    return std::unexpected(status.error());
  }
  const Result<LibsvmRows> whole = whole_of(group, *rows);
  if (!whole) return std::unexpected(whole.error());
  return dataset_of(std::move(*rows), *whole, file.name, options);
}

}  // namespace millrace::training
