#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/base/buffer.h"
#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "worker/training/model/model_file.h"

namespace {

/// The dimension that the head claims: the fuzzer's memory is bounded, a model's is not.
bool is_small(millrace::ByteSpan bytes) {
  uint64_t dimension = 0;
  if (bytes.size() < 24) return true;
  std::memcpy(&dimension, bytes.data() + 16, sizeof dimension);
  return dimension < (uint64_t{1} << 20);
}

}  // namespace

// Bytes with the checksum they need: the decoder behind it must refuse or give a finite model that encodes again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  millrace::ByteBuffer sealed(bytes, bytes + size);
  if (!is_small(sealed)) return 0;
  const uint64_t checksum = millrace::hash64(millrace::ByteSpan(sealed));
  sealed.resize(size + sizeof checksum);
  std::memcpy(sealed.data() + size, &checksum, sizeof checksum);
  const auto model = millrace::training::decode_model(sealed);
  if (!model) return 0;
  for (uint64_t index = 0; index <= model->dimension(); ++index)
    MILLRACE_CHECK(std::isfinite(model->weight(index)), index);
  MILLRACE_CHECK(millrace::training::decode_model(millrace::training::encode_model(*model)).has_value());
  return 0;
}
