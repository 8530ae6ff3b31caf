#include "worker/training/data/libsvm.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "kernels/base/plain_text.h"
#include "kernels/stream/stream.h"
#include "worker/training/data/text_source.h"

namespace millrace::training {
namespace {

constexpr uint64_t kLibsvmProgressRows = 4096;
constexpr size_t kLibsvmReadBytes = size_t{1} << 18;
constexpr std::string_view kQueryPrefix = "qid:";

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

/// Reads a whole token as a number; infinite where it is too large for f64, 0 where it is too small.
bool parse_number(std::string_view token, double& value) {
  if (token.starts_with('+') && !token.starts_with("+-")) token.remove_prefix(1);
  const char* end = token.data() + token.size();
  const auto [at, error] = std::from_chars(token.data(), end, value);
  if (at != end || error == std::errc::invalid_argument) return false;
  // from_chars() does not say on which side a number is out of range.
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(token).c_str(), nullptr);
  return !std::isnan(value);
}

/// Returns whether a number is written in digits: "inf" is refused in a file.
bool is_written_out(std::string_view token) { return token.find_first_of("iI") == std::string_view::npos; }

/// Returns the kind of file that a line's first token looks like. Empty: not known.
std::string kind_of(std::string_view token) {
  if (token.find(',') != std::string_view::npos) return "; it looks like CSV: write LABEL INDEX:VALUE INDEX:VALUE ...";
  if (token.find('|') != std::string_view::npos) return "; it looks like Vowpal Wabbit's format";
  return {};
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

/// Returns whether a row with that label is positive, for a model whose training rows had that pair. 0 and -1 both name
/// the negative class beside a positive 1. Empty: the label is none of them.
std::optional<bool> is_positive(double label, LabelPair trained) {
  if (trained == LabelPair::kOneTwo) {
    if (label == 1 || label == 2) return label == 2;
    return std::nullopt;
  }
  if (label == 1) return true;
  if (label == 0 || label == -1) return false;
  return std::nullopt;
}

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
  row_.clear();
  if (Status status = label(first); !status) return status;
  previous_index_ = 0;
  std::string_view token = next_token(text);
  if (token.starts_with(kQueryPrefix)) {
    if (Status status = query(token); !status) return status;
    token = next_token(text);
  }
  for (; !token.empty(); token = next_token(text)) {
    if (Status status = feature(token); !status) return status;
  }
  if (kept()) data_.row_begin.push_back(data_.indices.size());
  content_hash_ =
      hash64(ByteSpan(std::bit_cast<const uint8_t*>(row_.data()), row_.size() * sizeof(row_[0])), content_hash_);
  ++rows_;
  if (options_.progress && rows_ % kLibsvmProgressRows == 0) options_.progress(rows_);
  return {};
}

Status LibsvmParser::label(std::string_view token) {
  double value = 0;
  if (!parse_number(token, value) || !std::isfinite(value))
    return refuse("the label " + quoted(token) + " is not a number" + kind_of(token));
  const bool is_new = first_line_of_label_.try_emplace(value, lines_).second;
  if (is_new && first_line_of_label_.size() > 2) {
    std::string sentence = "a third class, " + quoted(token) + "; seen before:";
    for (const auto& [known, line] : first_line_of_label_) {
      if (known != value) sentence += " " + number_text(known) + " (line " + std::to_string(line) + ")";
    }
    return refuse(sentence + ". Two classes are needed, written 0 and 1, -1 and +1, or 1 and 2");
  }
  if (kept()) row_labels_.push_back(value);
  row_.push_back(std::bit_cast<uint64_t>(value == 0 ? 0.0 : value));
  return {};
}

/// Checks the number of a ranking's query, which is not used.
Status LibsvmParser::query(std::string_view token) const {
  const std::string_view text = token.substr(kQueryPrefix.size());
  uint64_t query = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), query);
  if (error == std::errc() && at == text.data() + text.size()) return {};
  return refuse("the query in " + quoted(token) +
                " is not a whole number below 2^64: write qid:NUMBER, or leave it out");
}

/// Reads an index, and returns it counted from 1, also where the file counts from 0.
Result<uint64_t> LibsvmParser::index(std::string_view token, std::string_view text) const {
  uint64_t index = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error == std::errc::invalid_argument || at != text.data() + text.size())
    return refuse("the index in " + quoted(token) + " is not a whole number");
  const uint64_t first = options_.index_base == IndexBase::kZero ? 0 : 1;
  if (error == std::errc::result_out_of_range || index >= kDimensionMax + first) {
    return refuse("the index in " + quoted(token) + " is above " + (first == 0 ? "2^32 - 1" : "2^32") +
                  ", the largest there is");
  }
  if (index < first) {
    return refuse("index 0 in " + quoted(token) +
                  ": LIBSVM counts from 1; a file that counts from 0 is read with --index-base 0");
  }
  return index - first + 1;
}

Result<float> LibsvmParser::value(std::string_view token, std::string_view text) const {
  double value = 0;
  if (!parse_number(text, value) || !is_written_out(text)) {
    const bool is_field_aware = text.find(':') != std::string_view::npos;
    return refuse("the value in " + quoted(token) + " is not a finite number" +
                  (is_field_aware ? "; it looks like LIBFFM's FIELD:INDEX:VALUE" : ""));
  }
  if (!std::isfinite(static_cast<float>(value)))
    return refuse("the value in " + quoted(token) + " is too large for f32, whose largest is 3.4e38");
  return static_cast<float>(value);
}

Status LibsvmParser::feature(std::string_view token) {
  const size_t colon = token.find(':');
  if (colon == std::string_view::npos) return refuse(quoted(token) + " is not INDEX:VALUE");
  const Result<uint64_t> at = index(token, token.substr(0, colon));
  if (!at) return std::unexpected(at.error());
  const bool is_known = options_.dimension == 0 || *at <= options_.dimension;
  if (!is_known && options_.use == RowUse::kTraining) {
    const bool from_zero = options_.index_base == IndexBase::kZero;
    return refuse(
        "index " + std::to_string(*at - (from_zero ? 1 : 0)) + " is above " +
        std::to_string(options_.dimension - (from_zero ? 1 : 0)) + ", the largest of --dimension " +
        std::to_string(options_.dimension) + (from_zero ? " with --index-base 0" : "") +
        (*at < kDimensionMax ? "; give --dimension " + std::to_string(*at) + " or more, or leave it out" : ""));
  }
  if (*at <= previous_index_) {
    const uint64_t less = options_.index_base == IndexBase::kZero ? 1 : 0;
    return refuse("index " + std::to_string(*at - less) + " after " + std::to_string(previous_index_ - less) +
                  ": the indices of a row must increase");
  }
  previous_index_ = *at;
  const Result<float> read = value(token, token.substr(colon + 1));
  if (!read) return std::unexpected(read.error());
  if (!is_known) {
    ++entries_left_out_;
    return {};
  }
  if (*at > largest_index_) {
    largest_index_ = *at;
    largest_index_line_ = lines_;
  }
  if (*read == 0) return {};
  row_.push_back((*at - 1) << 32 | std::bit_cast<uint32_t>(*read));
  if (kept()) {
    data_.indices.push_back(static_cast<uint32_t>(*at - 1));
    data_.values.push_back(*read);
  }
  return {};
}

LibsvmRows LibsvmParser::take_rows() && {
  LibsvmRows rows;
  rows.data = std::move(data_);
  rows.labels = std::move(row_labels_);
  for (const auto& [label, line] : first_line_of_label_) rows.classes.push_back(label);
  rows.largest_index = largest_index_;
  rows.largest_index_line = largest_index_line_;
  rows.entries_left_out = entries_left_out_;
  rows.rows = rows_;
  rows.content_hash = content_hash_;
  return rows;
}

Result<Dataset> LibsvmParser::finish() && {
  const std::string name = name_;
  const LibsvmOptions options = options_;
  LibsvmRows rows = std::move(*this).take_rows();
  LibsvmRows whole;
  whole.classes = rows.classes;
  whole.largest_index = rows.largest_index;
  whole.largest_index_line = rows.largest_index_line;
  whole.entries_left_out = rows.entries_left_out;
  whole.rows = rows.rows;
  whole.content_hash = rows.content_hash;
  return dataset_of(std::move(rows), whole, name, options);
}

namespace {

constexpr const char* kPairsText = "two classes are needed, written 0 and 1, -1 and +1, or 1 and 2";

/// Returns the pair that both classes of a file make.
Result<LabelPair> pair_of(const LibsvmRows& whole, const std::string& name) {
  if (whole.classes.size() > 2) {
    std::string sentence = name + ": its labels are";
    for (const double label : whole.classes) sentence += " " + number_text(label);
    return fail(ErrorCode::kMalformed, sentence + "; " + kPairsText);
  }
  const double low = whole.classes.front();
  const double high = whole.classes.back();
  if (whole.classes.size() < 2) {
    return fail(ErrorCode::kMalformed, name + ": all of its " + std::to_string(whole.rows) + " rows have the label " +
                                           number_text(low) + "; two classes are needed");
  }
  for (const PairOfLabels& known : kPairs) {
    if (known.negative == low && known.positive == high) return known.pair;
  }
  return fail(ErrorCode::kMalformed, name + ": its labels are " + number_text(low) + " and " + number_text(high) +
                                         "; write the two classes as 0 and 1, -1 and +1, or 1 and 2");
}

/// Returns the pair of labels of held-out rows: the model's. A model of an earlier version does not name it; then the
/// rows' labels decide.
Result<LabelPair> held_out_pair(const LibsvmRows& whole, const std::string& name, const LibsvmOptions& options) {
  if (!options.trained_pair) {
    if (whole.classes.size() != 1) return pair_of(whole, name);
    const double only = whole.classes.front();
    if (only == 0 || only == -1) return only == 0 ? LabelPair::kZeroOne : LabelPair::kMinusPlusOne;
    if (only == 2) return LabelPair::kOneTwo;
    return fail(ErrorCode::kMalformed,
                name + ": all of its " + std::to_string(whole.rows) + " rows have the label " + number_text(only) +
                    ", and the model, which an earlier version wrote, does not record the class of that label: "
                    "train it again, or add a row of the other class");
  }
  for (const double label : whole.classes) {
    if (is_positive(label, *options.trained_pair)) continue;
    return fail(ErrorCode::kMalformed, name + ": its label " + number_text(label) +
                                           " is none of those that the model was trained on (" +
                                           label_pair_text(*options.trained_pair) + "); write them the same way");
  }
  if (whole.classes.size() == 2 &&
      is_positive(whole.classes[0], *options.trained_pair) == is_positive(whole.classes[1], *options.trained_pair)) {
    return fail(ErrorCode::kMalformed, name + ": its labels " + number_text(whole.classes[0]) + " and " +
                                           number_text(whole.classes[1]) + " are one class (" +
                                           label_pair_text(*options.trained_pair) + ")");
  }
  return *options.trained_pair;
}

}  // namespace

Result<Dataset> dataset_of(LibsvmRows rows, const LibsvmRows& whole, const std::string& name,
                           const LibsvmOptions& options) {
  if (whole.rows == 0) return fail(ErrorCode::kMalformed, name + ": it holds no rows");
  const bool trains = options.use == RowUse::kTraining;
  const Result<LabelPair> pair = trains ? pair_of(whole, name) : held_out_pair(whole, name, options);
  if (!pair) return std::unexpected(pair.error());
  Dataset data = std::move(rows.data);
  data.label_pair = *pair;
  data.index_base = options.index_base;
  data.labels.reserve(rows.labels.size());
  for (const double value : rows.labels)
    data.labels.push_back(is_positive(value, *pair).value_or(false) ? int8_t{1} : int8_t{-1});
  data.dimension = options.dimension > 0 ? options.dimension : std::max<uint64_t>(whole.largest_index, 1);
  data.largest_index_line = whole.largest_index_line;
  data.entries_left_out = whole.entries_left_out;
  data.rows_in_file = whole.rows;
  data.content_hash = whole.content_hash;
  return data;
}

std::string left_out_text(const std::string& path, const Dataset& data) {
  return path + ": " + std::to_string(data.entries_left_out) +
         " entries of features that training lacked are left out\n";
}

namespace {

/// Hands the lines of an open file to the parser. `lines` counts those that were whole, for errors of the file itself.
Status feed(TextSource& file, const std::string& path, LibsvmParser& parser, uint64_t& lines) {
  std::string rest;
  auto block = std::make_unique<char[]>(kLibsvmReadBytes);
  bool is_first = true;
  for (;;) {
    const Result<size_t> got = file.read({block.get(), kLibsvmReadBytes});
    if (!got) {
      const std::string at = got.error().code == ErrorCode::kIo ? "" : fmt::format("after line {}: ", lines);
      return fail(got.error().code, fmt::format("{}: {}{}", path, at, got.error().message));
    }
    if (*got == 0) break;
    std::string_view text(block.get(), *got);
    if (std::exchange(is_first, false)) {
      const ByteBuffer head(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(text.size(), 8)));
      if (Status readable = refuse_foreign(head); !readable)
        return fail(readable.error().code, path + ": " + readable.error().message);
    }
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
  const auto file = open_text(path);
  if (!file) return std::unexpected(file.error());
  LibsvmParser parser(path, options);
  uint64_t lines = 0;
  if (Status status = feed(**file, path, parser, lines); !status) return std::unexpected(status.error());
  return std::move(parser).finish();
}

}  // namespace millrace::training
