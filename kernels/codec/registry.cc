#include <array>

#include "kernels/codec/codec_list.h"

namespace millrace {

std::span<const IndexCodec* const> index_codecs() {
#define MILLRACE_LISTED(name) &name##_index_codec(),
  static const std::array codecs = {MILLRACE_INDEX_CODECS(MILLRACE_LISTED)};
#undef MILLRACE_LISTED
  return codecs;
}

std::span<const ValueCodec* const> value_codecs() {
#define MILLRACE_LISTED(name) &name##_value_codec(),
  static const std::array codecs = {MILLRACE_VALUE_CODECS(MILLRACE_LISTED)};
#undef MILLRACE_LISTED
  return codecs;
}

const IndexCodec* find_index_codec(IndexCodecId id) {
  for (const IndexCodec* codec : index_codecs()) {
    if (codec->id() == id) return codec;
  }
  return nullptr;
}

const ValueCodec* find_value_codec(ValueCodecId id) {
  for (const ValueCodec* codec : value_codecs()) {
    if (codec->id() == id) return codec;
  }
  return nullptr;
}

CodecSpec without_loss(const CodecSpec& spec) {
  CodecSpec exact = spec;
  if (!find_index_codec(spec.index)->lossless()) exact.index = IndexCodecId::kGap;
  if (!find_value_codec(spec.value)->lossless(spec)) exact.value = ValueCodecId::kRaw;
  return exact;
}

}  // namespace millrace
