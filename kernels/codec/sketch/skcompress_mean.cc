#include "kernels/codec/codec.h"
#include "kernels/codec/sketch/sketch_values.h"

namespace millrace {

const ValueCodec& skcompress_mean_value_codec() {
  static const auto codec = skcompress_codec(ValueCodecId{18}, "skcompress_mean", BucketValue::kMean);
  return *codec;
}

}  // namespace millrace
