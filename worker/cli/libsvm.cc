#include "worker/cli/libsvm.h"

#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/plain_text.h"
#include "kernels/stream/stream.h"

namespace millrace::cli {
namespace {

constexpr uint64_t kLibsvmProgressRows = 4096;
constexpr size_t kLibsvmReadBytes = size_t{1} << 18;

/// The token at the front of `text`, cut off it; empty at the end.
std::string_view next_token(std::string_view& text) {
  const size_t begin = text.find_first_not_of(" \t\r\f\v");
  if (begin == std::string_view::npos) {
    text = {};
    return {};
  }
  const size_t end = std::min(text.find_first_of(" \t\r\f\v", begin), text.size());
  const std::string_view token = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return token;
}

/// Up to 40 bytes of a token that can be printed, quoted: it comes from a file.
std::string quoted(std::string_view token) {
  constexpr size_t kShownMax = 40;
  return "'" + plain_text_of(token, kShownMax) + (token.size() > kShownMax ? "...'" : "'");
}

/// A whole token as a finite number.
bool parse_number(std::string_view token, double& value) {
  if (token.starts_with('+') && !token.starts_with("+-")) token.remove_prefix(1);
  const char* end = token.data() + token.size();
  const auto [at, error] = std::from_chars(token.data(), end, value);
  return error == std::errc() && at == end && std::isfinite(value);
}

struct PairOfLabels {
  LabelPair pair;
  double negative;
  double positive;
};
constexpr PairOfLabels kPairs[] = {
    {LabelPair::kZeroOne, 0, 1}, {LabelPair::kMinusPlusOne, -1, 1}, {LabelPair::kOneTwo, 1, 2}};

std::string number_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

struct CloseGz {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzHandle = std::unique_ptr<gzFile_s, CloseGz>;

}  // namespace

std::string label_pair_text(LabelPair pair) {
  switch (pair) {
    case LabelPair::kZeroOne: return "0 is negative, 1 is positive";
    case LabelPair::kMinusPlusOne: return "-1 is negative, +1 is positive";
    case LabelPair::kOneTwo: return "1 is negative, 2 is positive";
  }
  return "unknown";
}

LibsvmParser::LibsvmParser(std::string name, LibsvmOptions options)
    : name_(std::move(name)), options_(std::move(options)) {
  MILLRACE_CHECK(options_.parts >= 1 && options_.part < options_.parts, options_.part, options_.parts);
}

std::unexpected<Error> LibsvmParser::refuse(const std::string& sentence) const {
  return fail(ErrorCode::kMalformed, name_ + ":" + std::to_string(lines_) + ": " + sentence);
}

Status LibsvmParser::line(std::string_view text) {
  ++lines_;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors begin a UTF-8 file with it
  if (lines_ == 1 && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  text = text.substr(0, text.find('#'));
  const std::string_view first = next_token(text);
  if (first.empty()) return {};
  if (Status status = label(first); !status) return status;
  previous_index_ = 0;
  for (std::string_view token = next_token(text); !token.empty(); token = next_token(text)) {
    if (Status status = feature(token); !status) return status;
  }
  if (kept()) data_.row_begin.push_back(data_.indices.size());
  ++rows_;
  if (options_.progress && rows_ % kLibsvmProgressRows == 0) options_.progress(rows_);
  return {};
}

Status LibsvmParser::label(std::string_view token) {
  double value = 0;
  if (!parse_number(token, value)) return refuse("the label " + quoted(token) + " is not a number");
  const bool is_new = first_line_of_label_.try_emplace(value, lines_).second;
  if (is_new && first_line_of_label_.size() > 2) {
    std::string sentence = "a third class, " + quoted(token) + "; seen before:";
    for (const auto& [known, line] : first_line_of_label_) {
      if (known != value) sentence += " " + number_text(known) + " (line " + std::to_string(line) + ")";
    }
    return refuse(sentence + ". Two classes are needed, written 0 and 1, -1 and +1, or 1 and 2");
  }
  if (kept()) row_labels_.push_back(value);
  return {};
}

Status LibsvmParser::feature(std::string_view token) {
  const size_t colon = token.find(':');
  if (colon == std::string_view::npos) return refuse(quoted(token) + " is not INDEX:VALUE");
  const std::string_view index_text = token.substr(0, colon);
  uint64_t index = 0;
  const auto [at, error] = std::from_chars(index_text.data(), index_text.data() + index_text.size(), index);
  if (error == std::errc::invalid_argument || at != index_text.data() + index_text.size()) {
    return refuse("the index in " + quoted(token) + " is not a whole number");
  }
  if (error == std::errc::result_out_of_range || index > kDimensionMax) {
    return refuse("the index in " + quoted(token) + " is above 2^32, the largest there is");
  }
  if (index == 0) return refuse("index 0 in " + quoted(token) + ": LIBSVM counts from 1");
  if (options_.dimension > 0 && index > options_.dimension) {
    return refuse("index " + std::to_string(index) + " is past the dimension, " + std::to_string(options_.dimension) +
                  "; train with a larger --dimension");
  }
  if (index <= previous_index_) {
    return refuse("index " + std::to_string(index) + " after " + std::to_string(previous_index_) +
                  ": the indices of a row must increase");
  }
  previous_index_ = index;
  largest_index_ = std::max(largest_index_, index);
  double value = 0;
  if (!parse_number(token.substr(colon + 1), value) || !std::isfinite(static_cast<float>(value))) {
    return refuse("the value in " + quoted(token) + " is not a finite number");
  }
  if (kept() && static_cast<float>(value) != 0) {
    data_.indices.push_back(static_cast<uint32_t>(index - 1));
    data_.values.push_back(static_cast<float>(value));
  }
  return {};
}

LibsvmRows LibsvmParser::take_rows() && {
  LibsvmRows rows{std::move(data_), std::move(row_labels_), {}, largest_index_, rows_};
  for (const auto& [label, line] : first_line_of_label_) rows.classes.push_back(label);
  return rows;
}

Result<Dataset> LibsvmParser::finish() && {
  const std::string name = name_;
  const uint64_t dimension = options_.dimension;
  LibsvmRows rows = std::move(*this).take_rows();
  const LibsvmRows whole{{}, {}, rows.classes, rows.largest_index, rows.rows};
  return dataset_of(std::move(rows), whole, name, dimension);
}

Result<Dataset> dataset_of(LibsvmRows rows, const LibsvmRows& whole, const std::string& name, uint64_t dimension) {
  if (whole.rows == 0) return fail(ErrorCode::kMalformed, name + ": it holds no rows");
  if (whole.classes.size() > 2) {
    std::string sentence = name + ": its labels are";
    for (const double label : whole.classes) sentence += " " + number_text(label);
    return fail(ErrorCode::kMalformed, sentence + "; two classes are needed, written 0 and 1, -1 and +1, or 1 and 2");
  }
  const double low = whole.classes.front();
  const double high = whole.classes.back();
  if (whole.classes.size() < 2) {
    return fail(ErrorCode::kMalformed, name + ": all of its " + std::to_string(whole.rows) + " rows have the label " +
                                           number_text(low) + "; two classes are needed");
  }
  for (const PairOfLabels& known : kPairs) {
    if (known.negative != low || known.positive != high) continue;
    Dataset data = std::move(rows.data);
    data.label_pair = known.pair;
    data.labels.reserve(rows.labels.size());
    for (const double value : rows.labels) data.labels.push_back(value == high ? int8_t{1} : int8_t{-1});
    data.dimension = dimension > 0 ? dimension : std::max<uint64_t>(whole.largest_index, 1);
    data.rows_in_file = whole.rows;
    return data;
  }
  return fail(ErrorCode::kMalformed, name + ": its labels are " + number_text(low) + " and " + number_text(high) +
                                         "; write the two classes as 0 and 1, -1 and +1, or 1 and 2");
}

namespace {

/// Hands the lines of an open file to the parser. `lines` counts those that were whole, for errors of the file itself.
Status feed(gzFile file, const std::string& path, LibsvmParser& parser, uint64_t& lines) {
  std::string rest;
  auto block = std::make_unique<char[]>(kLibsvmReadBytes);
  for (;;) {
    const int got = gzread(file, block.get(), static_cast<unsigned>(kLibsvmReadBytes));
    int code = Z_OK;
    const char* reason = gzerror(file, &code);
    if (got < 0 || (got == 0 && code != Z_OK && code != Z_STREAM_END)) {
      if (code == Z_ERRNO) return fail(ErrorCode::kIo, path + ": " + std::strerror(errno));
      const std::string at = path + ": after line " + std::to_string(lines) + ": ";
      if (code == Z_BUF_ERROR)
        return fail(ErrorCode::kMalformed, at + "the gzip data ends too early; the file is truncated");
      return fail(ErrorCode::kMalformed, at + "damaged gzip data (" + reason + ")");
    }
    if (got == 0) break;
    std::string_view text(block.get(), static_cast<size_t>(got));
    for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
      rest.append(text.substr(0, end));
      if (Status status = parser.line(rest); !status) return status;
      rest.clear();
      ++lines;
      text.remove_prefix(end + 1);
    }
    rest.append(text);
    if (rest.size() > kLibsvmLineBytesMax) {
      return fail(ErrorCode::kMalformed, path + ":" + std::to_string(lines + 1) + ": the line is longer than 256 MiB");
    }
  }
  return rest.empty() ? Status{} : parser.line(rest);
}

}  // namespace

Result<Dataset> read_libsvm(const std::string& path, const LibsvmOptions& options) {
  struct stat there = {};
  if (stat(path.c_str(), &there) == 0 && S_ISDIR(there.st_mode))
    return fail(ErrorCode::kIo, path + ": " + std::strerror(EISDIR));
  errno = 0;
  const GzHandle file(gzopen(path.c_str(), "rb"));
  if (!file) return fail(ErrorCode::kIo, path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be opened"));
  gzbuffer(file.get(), static_cast<unsigned>(kLibsvmReadBytes));
  // gzdirect() looks at the first bytes: true where they are not gzip's.
  const bool plain = gzdirect(file.get()) != 0;
  if (plain && path.ends_with(".gz")) {
    return fail(ErrorCode::kMalformed,
                path + ": its name ends in .gz, but it is not gzip data; rename it or compress it");
  }
  LibsvmParser parser(path, options);
  uint64_t lines = 0;
  if (Status status = feed(file.get(), path, parser, lines); !status) return std::unexpected(status.error());
  return std::move(parser).finish();
}

}  // namespace millrace::cli
