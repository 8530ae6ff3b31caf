#include "kernels/codec/codec.h"
#include "kernels/codec/sketch/sketch_values.h"

namespace millrace {

const ValueCodec& sketchml_mean_value_codec() {
  static const auto codec = sketchml_codec(ValueCodecId{17}, "sketchml_mean", BucketValue::kMean);
  return *codec;
}

}  // namespace millrace
