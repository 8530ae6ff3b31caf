#include "kernels/base/registry.h"
#include "kernels/codec/codec_list.h"

namespace millrace {
namespace {

const auto& index_codec_registry() {
#define MILLRACE_LISTED(word) &word##_index_codec(),
  static const Registry registry = {MILLRACE_INDEX_CODECS(MILLRACE_LISTED)};
#undef MILLRACE_LISTED
  return registry;
}

const auto& value_codec_registry() {
#define MILLRACE_LISTED(word) &word##_value_codec(),
  static const Registry registry = {MILLRACE_VALUE_CODECS(MILLRACE_LISTED)};
#undef MILLRACE_LISTED
  return registry;
}

}  // namespace

std::span<const IndexCodec* const> index_codecs() { return index_codec_registry().entries(); }

std::span<const ValueCodec* const> value_codecs() { return value_codec_registry().entries(); }

const IndexCodec* find_index_codec(IndexCodecId id) {
  const IndexCodec* const* codec = index_codec_registry().with_number(id);
  return codec == nullptr ? nullptr : *codec;
}

const ValueCodec* find_value_codec(ValueCodecId id) {
  const ValueCodec* const* codec = value_codec_registry().with_number(id);
  return codec == nullptr ? nullptr : *codec;
}

CodecSpec without_loss(const CodecSpec& spec) {
  CodecSpec exact = spec;
  if (!find_index_codec(spec.index)->lossless()) exact.index = IndexCodecId::kGap;
  if (!find_value_codec(spec.value)->lossless(spec)) exact.value = ValueCodecId::kRaw;
  return exact;
}

}  // namespace millrace
