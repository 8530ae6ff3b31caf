#include <optional>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/words.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const std::optional<T> number = number_from_text<T>(text);
  value = number.value_or(value);
  return number.has_value();
}

std::unexpected<Error> refuse(std::string_view text) {
  return fail(ErrorCode::kInvalidArgument, "codec '" + std::string(text) + "' is not INDEX[+VALUE] with INDEX " +
                                               index_codec_words() + " and VALUE raw, qsgd{2,4,8}[:max|:l2][:BUCKET]");
}

bool parse_index(std::string_view text, CodecSpec& spec) {
  auto parts = split(text, ':');
  if (parts[0] == "bloom") parts[0] = "bloom_p0";  // its name before there were other policies
  for (const IndexCodec* codec : index_codecs()) {
    if (codec->name() != parts[0]) continue;
    spec.index = codec->id();
    if (parts.size() == 1) return true;
    return parts.size() == 2 && codec->takes_rate() && parse_number(parts[1], spec.bloom_false_positive_rate);
  }
  return false;
}

bool parse_value(std::string_view text, CodecSpec& spec) {
  if (text == "raw") {
    spec.value = ValueCodecId::kRaw;
    return true;
  }
  constexpr std::string_view kQsgd = "qsgd";
  if (!text.starts_with(kQsgd)) return false;
  spec.value = ValueCodecId::kQsgd;
  const auto parts = split(text.substr(kQsgd.size()), ':');
  if (!parse_number(parts[0], spec.qsgd_bits)) return false;
  size_t next = 1;
  if (next < parts.size() && (parts[next] == "max" || parts[next] == "l2")) {
    spec.qsgd_scale_max = parts[next] == "max";
    ++next;
  }
  if (next == parts.size()) return true;
  return next + 1 == parts.size() && parse_number(parts[next], spec.qsgd_bucket_size);
}

}  // namespace

std::string index_codec_words() {
  std::string words;
  for (const IndexCodec* codec : index_codecs()) {
    if (!words.empty()) words += ", ";
    words += codec->name();
    if (codec->takes_rate()) words += "[:RATE]";
  }
  return words;
}

Status validate(const CodecSpec& spec) {
  if (find_index_codec(spec.index) == nullptr) return fail(ErrorCode::kInvalidArgument, "unknown index codec");
  if (find_value_codec(spec.value) == nullptr) return fail(ErrorCode::kInvalidArgument, "unknown value codec");
  if (!(spec.bloom_false_positive_rate >= kBloomRateMin && spec.bloom_false_positive_rate <= 0.5)) {
    return fail(ErrorCode::kInvalidArgument, "the Bloom false positive rate must be in [1e-9, 0.5]");
  }
  if (spec.qsgd_bits != 2 && spec.qsgd_bits != 4 && spec.qsgd_bits != 8) {
    return fail(ErrorCode::kInvalidArgument, "QSGD takes 2, 4 or 8 bits");
  }
  if (spec.qsgd_bucket_size == 0 || spec.qsgd_bucket_size > kQsgdBucketSizeMax) {
    return fail(ErrorCode::kInvalidArgument, "the QSGD bucket size must be in [1, 2^24]");
  }
  return {};
}

Result<CodecSpec> codec_from_text(std::string_view text) {
  CodecSpec spec;
  const auto parts = split(text, '+');
  if (parts.size() > 2 || !parse_index(parts[0], spec)) return refuse(text);
  if (parts.size() == 2 && !parse_value(parts[1], spec)) return refuse(text);
  if (auto valid = validate(spec); !valid) return std::unexpected(valid.error());
  return spec;
}

std::string codec_text(const CodecSpec& spec) {
  const IndexCodec* index = find_index_codec(spec.index);
  MILLRACE_CHECK(index != nullptr, static_cast<int>(spec.index));
  std::string text(index->name());
  const CodecSpec defaults;
  if (index->takes_rate() && spec.bloom_false_positive_rate != defaults.bloom_false_positive_rate) {
    char number[32];
    const auto [end, error] = std::to_chars(number, number + sizeof(number), spec.bloom_false_positive_rate);
    MILLRACE_CHECK(error == std::errc());
    text += ':' + std::string(number, end);
  }
  if (spec.value == ValueCodecId::kRaw) return text;
  text += "+qsgd" + std::to_string(spec.qsgd_bits);
  const bool other_bucket = spec.qsgd_bucket_size != defaults.qsgd_bucket_size;
  if (!spec.qsgd_scale_max) {
    text += ":l2";
  } else if (other_bucket) {
    text += ":max";
  }
  if (other_bucket) text += ':' + std::to_string(spec.qsgd_bucket_size);
  return text;
}

}  // namespace millrace
