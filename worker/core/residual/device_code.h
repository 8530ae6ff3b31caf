#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/codec/codec.h"
#include "kernels/cuda/quantize.h"

namespace millrace::worker {

/// Holds an array of values where a queue's kernels run, and the memory for their decoded values.
struct ValuesToCode {
  const float* values = nullptr;
  uint64_t count = 0;
  float* decoded = nullptr;
};

/// Codes values, and waits for the queue.
///
/// header  that of the codec, which f16 changes.
/// code    in the queue's memory, at a multiple of 16 bytes.
template <class Queue>
Status code_values(Queue& queue, const ValuesToCode& array, const EncodeOptions& options, std::span<uint8_t> header,
                   void* code) {
  const CodecSpec& spec = options.spec;
  const auto words = cuda::words_of(options.random, options.index_base);
  auto* const bytes = static_cast<uint8_t*>(code);
  auto* const halves = static_cast<uint16_t*>(code);
  switch (spec.value) {
    case ValueCodecId::kQsgd: {
      const auto scale = spec.qsgd_scale_max ? QsgdBucketScale::kMax : QsgdBucketScale::kL2;
      const QsgdOptions qsgd{spec.qsgd_bits, spec.bucket_size, scale, options.random, options.index_base};
      return cuda::qsgd(queue, array.values, array.count, qsgd, bytes, array.decoded);
    }
    case ValueCodecId::kTernGrad:
      return cuda::ternary(queue, array.values, array.count, spec.bucket_size, words, bytes, array.decoded);
    case ValueCodecId::kOneBit:
      return cuda::one_bit(queue, array.values, array.count, spec.bucket_size, bytes, array.decoded);
    case ValueCodecId::kBf16: return cuda::bf16(queue, array.values, array.count, words, halves, array.decoded);
    case ValueCodecId::kF16: {
      const auto exponent = cuda::f16(queue, array.values, array.count, words, halves, array.decoded);
      if (!exponent) return std::unexpected(exponent.error());
      const auto bits = static_cast<int16_t>(*exponent);
      std::memcpy(header.data(), &bits, sizeof(bits));
      return {};
    }
    default: return fail(ErrorCode::kUnsupported, "a value codec without a kernel");
  }
}

/// Writes the values that the host's value codec decodes for values, which are where a queue's kernels run.
///
/// REQUIRES  device_codes(options.spec, count); count is at least 1.
/// Cost      nothing crosses the bus but a codec's header. Waits for the queue.
/// Errors    as append_code().
template <class Queue>
Status decoded_values(Queue& queue, const ValuesToCode& array, const EncodeOptions& options) {
  auto code =
      queue.template allocate<uint8_t>(find_value_codec(options.spec.value)->bytes_max(array.count, options.spec));
  std::array<uint8_t, sizeof(int16_t)> header{};
  return code_values(queue, array, options, header, code.data());
}

/// Appends to `out` the bytes that the host's value codec appends for the same values, which are where a queue's
/// kernels run.
///
/// REQUIRES  device_codes(options.spec, count); count is at least 1.
/// Cost      the coded bytes cross the bus. Waits for the queue.
/// Errors    as the codec's; limit_exceeded: also no memory there. `out` is unspecified then.
template <class Queue>
Status append_code(Queue& queue, const ValuesToCode& array, const EncodeOptions& options, ByteBuffer& out) {
  const ValueCodec& codec = *find_value_codec(options.spec.value);
  const size_t begin = out.size();
  // The code of no values is the codec's header.
  if (auto done = codec.encode({}, {}, options, out, {}); !done) return done;
  const size_t header_bytes = out.size() - begin;
  const uint64_t code_bytes = codec.bytes_max(array.count, options.spec) - header_bytes;
  auto code = queue.template allocate<uint8_t>(code_bytes);
  const std::span<uint8_t> header(out.data() + begin, header_bytes);
  if (auto done = code_values(queue, array, options, header, code.data()); !done) return done;
  out.resize(begin + header_bytes + code_bytes);
  queue.download(std::span<uint8_t>(out).subspan(begin + header_bytes), static_cast<const uint8_t*>(code.data()));
  return queue.finish();
}

}  // namespace millrace::worker
