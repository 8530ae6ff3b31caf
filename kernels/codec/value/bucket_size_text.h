#pragma once

#include <string>
#include <string_view>

#include "kernels/base/words.h"
#include "kernels/codec/codec.h"
#include "kernels/quantize/qsgd.h"

namespace millrace {

/// Parses NAME[:BUCKET], the words of a codec whose only parameter is the bucket size.
inline bool parse_bucket_size(std::string_view text, std::string_view name, CodecSpec& spec) {
  const auto parts = split(text, ':');
  if (parts[0] != name) return false;
  return parts.size() == 1 || (parts.size() == 2 && assign_number(parts[1], spec.bucket_size));
}

inline std::string bucket_text(std::string_view name, const CodecSpec& spec) {
  std::string text(name);
  if (spec.bucket_size != CodecSpec().bucket_size) text += ':' + std::to_string(spec.bucket_size);
  return text;
}

/// With 2 bits and the maximum it is TernGrad: no bound holds (QsgdBucketScale::kMax).
inline bool is_qsgd_contraction(const CodecSpec& spec) { return spec.qsgd_scale_max && spec.qsgd_bits > kQsgdBitsMin; }

/// Parses NAME{bits}[:max|:l2][:BUCKET], the words of QSGD's codecs.
inline bool parse_qsgd_text(std::string_view text, std::string_view name, CodecSpec& spec) {
  if (!text.starts_with(name)) return false;
  const auto parts = split(text.substr(name.size()), ':');
  if (!assign_number(parts[0], spec.qsgd_bits)) return false;
  size_t next = 1;
  if (next < parts.size() && (parts[next] == "max" || parts[next] == "l2")) {
    spec.qsgd_scale_max = parts[next] == "max";
    ++next;
  }
  if (next == parts.size()) return true;
  return next + 1 == parts.size() && assign_number(parts[next], spec.bucket_size);
}

inline std::string qsgd_text(std::string_view name, const CodecSpec& spec) {
  std::string text = std::string(name) + std::to_string(spec.qsgd_bits);
  const bool other_bucket = spec.bucket_size != CodecSpec().bucket_size;
  if (!spec.qsgd_scale_max) {
    text += ":l2";
  } else if (other_bucket) {
    text += ":max";
  }
  if (other_bucket) text += ':' + std::to_string(spec.bucket_size);
  return text;
}

}  // namespace millrace
