#include <array>

#include "kernels/codec/codec_list.h"

namespace millrace {

std::span<const IndexCodec* const> index_codecs() {
  static const std::array<const IndexCodec*, 4> codecs = {&raw_index_codec(), &bitmap_index_codec(), &gap_index_codec(),
                                                          &bloom_index_codec()};
  return codecs;
}

std::span<const ValueCodec* const> value_codecs() {
  static const std::array<const ValueCodec*, 2> codecs = {&raw_value_codec(), &qsgd_value_codec()};
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

}  // namespace millrace
