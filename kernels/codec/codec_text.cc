#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/registry.h"
#include "kernels/base/words.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

/// hint  did_you_mean() of the part that is none.
std::unexpected<Error> refuse(std::string_view text, const std::string& hint) {
  return fail(ErrorCode::kInvalidArgument, "codec '" + std::string(text) +
                                               "' is not auto[+VALUE] or INDEX[+VALUE] with INDEX " +
                                               index_codec_names() + " and VALUE " + value_codec_names() + hint);
}

std::string hint_for_index(std::string_view text) {
  std::vector<std::string> known = texts_of(index_codecs(), std::mem_fn(&IndexCodec::name));
  known.emplace_back("auto");
  return did_you_mean(text.substr(0, text.find(':')), known);
}

/// Of "qsdg4:512": 'qsgd4'.
std::string hint_for_value(std::string_view text) {
  const auto example = [](const ValueCodec* codec) { return codec->text(CodecSpec{}); };
  return did_you_mean(text.substr(0, text.find(':')), texts_of(value_codecs(), example));
}

bool parse_index(std::string_view text, CodecSpec& spec) {
  auto parts = split(text, ':');
  if (parts[0] == "bloom") parts[0] = "bloom_p0";  // its name before there were other policies
  for (const IndexCodec* codec : index_codecs()) {
    if (codec->name() != parts[0]) continue;
    spec.index = codec->id();
    if (parts.size() == 1) return true;
    return parts.size() == 2 && codec->takes_rate() && assign_number(parts[1], spec.bloom_false_positive_rate);
  }
  return false;
}

bool parse_value(std::string_view text, CodecSpec& spec) {
  for (const ValueCodec* codec : value_codecs()) {
    if (!codec->parse(text, spec)) continue;
    spec.value = codec->id();
    return true;
  }
  return false;
}

}  // namespace

std::string index_codec_names() {
  return listed_texts(index_codecs(), [](const IndexCodec* codec) {
    return std::string(codec->name()) + (codec->takes_rate() ? "[:RATE]" : "");
  });
}

std::string value_codec_names() {
  return listed_texts(value_codecs(), [](const ValueCodec* codec) { return codec->help_text(); });
}

Status validate(const CodecSpec& spec) {
  if (find_index_codec(spec.index) == nullptr) return fail(ErrorCode::kInvalidArgument, "unknown index codec");
  if (find_value_codec(spec.value) == nullptr) return fail(ErrorCode::kInvalidArgument, "unknown value codec");
  if (spec.automatic && spec.index != CodecSpec{}.index) {
    return fail(ErrorCode::kInvalidArgument, "auto chooses the index codec: name none beside it");
  }
  if (!(spec.bloom_false_positive_rate >= kBloomRateMin && spec.bloom_false_positive_rate < 1)) {
    return fail(ErrorCode::kInvalidArgument,
                "the Bloom false positive rate must be at least 1e-9 and below 1 (at 1 a filter knows every index: use "
                "bitmap, or a dense stream)");
  }
  if (spec.bucket_size == 0 || spec.bucket_size > kBucketSizeMax) {
    return fail(ErrorCode::kInvalidArgument, "the bucket size must be in [1, 2^24]");
  }
  for (const ValueCodec* codec : value_codecs()) {
    if (const Status valid = codec->validate(spec); !valid) return valid;
  }
  return {};
}

Result<CodecSpec> codec_from_text(std::string_view text) {
  CodecSpec spec;
  const auto parts = split(text, '+');
  spec.automatic = parts[0] == "auto";
  if (parts.size() > 2) return refuse(text, {});
  if (!spec.automatic && !parse_index(parts[0], spec)) return refuse(text, hint_for_index(parts[0]));
  if (parts.size() == 2 && !parse_value(parts[1], spec)) return refuse(text, hint_for_value(parts[1]));
  if (auto valid = validate(spec); !valid) return std::unexpected(valid.error());
  return spec;
}

std::string codec_text(const CodecSpec& spec) {
  const IndexCodec* index = find_index_codec(spec.index);
  MILLRACE_CHECK(index != nullptr, static_cast<int>(spec.index));
  std::string text(spec.automatic ? "auto" : index->name());
  const CodecSpec defaults;
  if (!spec.automatic && index->takes_rate() && spec.bloom_false_positive_rate != defaults.bloom_false_positive_rate) {
    char number[32];
    const auto [end, error] = std::to_chars(number, number + sizeof(number), spec.bloom_false_positive_rate);
    MILLRACE_CHECK(error == std::errc());
    text += ':' + std::string(number, end);
  }
  if (spec.value == ValueCodecId::kRaw) return text;
  const ValueCodec* value = find_value_codec(spec.value);
  MILLRACE_CHECK(value != nullptr, static_cast<int>(spec.value));
  return text + '+' + value->text(spec);
}

bool ValueCodec::parse(std::string_view text, CodecSpec&) const { return text == name(); }

std::string ValueCodec::text(const CodecSpec&) const { return std::string(name()); }

std::string ValueCodec::help_text() const { return std::string(name()); }

Status ValueCodec::validate(const CodecSpec&) const { return {}; }

}  // namespace millrace
