#include <array>
#include <cmath>
#include <cstdio>

#include "kernels/base/check.h"
#include "kernels/codec/automatic/codec_choice.h"

namespace millrace {
namespace {

std::string number_text(double number, const char* unit) {
  std::array<char, 48> text{};
  // Two digits at least, and no more than three where they are behind the point.
  const char* const format = number >= 99.5 ? "%.0f %s" : "%.2g %s";
  std::snprintf(text.data(), text.size(), format, number, unit);
  return text.data();
}

std::string time_text(double ns) {
  if (ns < 999.5) return number_text(ns, "ns");
  if (ns < 999.5e3) return number_text(ns * 1e-3, "us");
  if (ns < 999.5e6) return number_text(ns * 1e-6, "ms");
  return number_text(ns * 1e-9, "s");
}

std::string rate_text(double bits_per_s) {
  if (bits_per_s < 999.5e3) return number_text(bits_per_s * 1e-3, "kbit/s");
  if (bits_per_s < 999.5e6) return number_text(bits_per_s * 1e-6, "Mbit/s");
  return number_text(bits_per_s * 1e-9, "Gbit/s");
}

}  // namespace

std::string candidate_text(const CodecCandidate& candidate) {
  const ValueCodec* const value = find_value_codec(candidate.value);
  MILLRACE_CHECK(value != nullptr, static_cast<int>(candidate.value));
  if (candidate.dense) {
    return candidate.value == ValueCodecId::kRaw ? "dense" : "dense+" + std::string(value->name());
  }
  const IndexCodec* const index = find_index_codec(candidate.index);
  MILLRACE_CHECK(index != nullptr, static_cast<int>(candidate.index));
  return std::string(index->name()) + '+' + std::string(value->name());
}

std::string CodecChoice::text() const {
  std::string text = candidate_text(chosen) + ": " + time_text(chosen.total_ns);
  const char* joint = " against ";
  bool sparse_reported = false;
  bool dense_reported = chosen.dense;
  for (const CodecCandidate& other : candidates) {
    if (!other.complete || other.codes_as(chosen)) continue;
    bool& told = other.dense ? dense_reported : sparse_reported;
    if (told) continue;
    told = true;
    text += joint + time_text(other.total_ns) + ' ' + candidate_text(other);
    joint = ", ";
  }
  std::array<char, 48> at{};
  std::snprintf(at.data(), at.size(), ", density %.2g", density);
  return text + " at " + rate_text(link_bits_per_s) + at.data();
}

}  // namespace millrace
