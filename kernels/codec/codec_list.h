#pragma once

#include "kernels/codec/codec.h"

namespace millrace {

// One object a file; registry.cc lists them. Everyone else goes through find_index_codec() and find_value_codec().
const IndexCodec& raw_index_codec();
const IndexCodec& bitmap_index_codec();
const IndexCodec& gap_index_codec();
const IndexCodec& bloom_index_codec();
const ValueCodec& raw_value_codec();
const ValueCodec& qsgd_value_codec();

}  // namespace millrace
