#include "kernels/codec/bloom/bloom_policy.h"

#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"

namespace millrace {
namespace {

constexpr size_t kBloomPolicyHeaderBytes = 12;

std::unexpected<Error> malformed_bloom_policy(std::string_view name, const char* what) {
  return fail(ErrorCode::kMalformed, std::string(name) + ": " + what);
}

}  // namespace

uint64_t BloomPolicyCodec::bytes_estimate(uint64_t count, uint64_t, const CodecSpec& spec) const {
  return kBloomPolicyHeaderBytes + BloomFilter::bytes(count, spec.bloom_false_positive_rate);
}

Status BloomPolicyCodec::pick(const BloomPickInput& input, IndexBuffer& indices) const {
  indices.clear();
  const std::unique_ptr<BloomPicker> choice = picker(input);
  if (choice == nullptr)
    return malformed_bloom_policy(name(), "more positives than a filter of the stated indices has");
  uint64_t positives = 0;
  input.filter.scan(input.dimension, [&](IndexSpan some) {
    positives += some.size();
    if (positives > input.positives) return false;
    const uint64_t room = std::min<uint64_t>(indices.size() + some.size(), input.count);
    if (indices.capacity() < room) indices.reserve(std::min(room + room / 2, input.count));
    for (const uint32_t index : some) {
      if (choice->takes_next()) indices.push_back(index);
    }
    return true;
  });
  if (positives != input.positives || indices.size() != input.count) {
    return malformed_bloom_policy(name(), "the filter does not know the stated number of indices");
  }
  return {};
}

Status BloomPolicyCodec::encode(IndexSpan indices, uint64_t dimension, const EncodeOptions& options, ByteBuffer& out,
                                IndexBuffer* decoded) const {
  MILLRACE_CHECK(decoded != nullptr && (indices.empty() || indices.back() < dimension), dimension);
  if (auto held = check_bloom_dimension(name(), dimension); !held) return held;
  const uint64_t seed = bloom_seed(options);
  const auto filter = BloomFilter::of(indices, options.spec.bloom_false_positive_rate, seed);
  if (!filter) return std::unexpected(filter.error());
  uint64_t positives = 0;
  filter->scan(dimension, [&](IndexSpan some) {
    positives += some.size();
    return true;
  });
  ByteWriter writer(out);
  writer.put(seed);
  writer.put(static_cast<uint32_t>(positives));
  filter->put(out);
  const Status picked = pick({*filter, seed, dimension, positives, indices.size()}, *decoded);
  MILLRACE_CHECK(picked.has_value(), positives, indices.size());
  return {};
}

Status BloomPolicyCodec::decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const {
  if (dimension > kBloomDimensionMax || count > dimension) {
    return malformed_bloom_policy(name(), "dimension over 2^28, or more indices than the dimension has");
  }
  ByteReader reader(bytes);
  const auto seed = reader.get<uint64_t>();
  const auto positives = reader.get<uint32_t>();
  const auto filter = seed && positives
                          ? BloomFilter::take(*seed, bytes.subspan(kBloomPolicyHeaderBytes), {count, count})
                          : std::nullopt;
  if (!filter) return malformed_bloom_policy(name(), "the filter does not fit the stated number of indices");
  if (*positives < count || *positives > dimension)
    return malformed_bloom_policy(name(), "a number of positives that cannot be");
  return pick({*filter, *seed, dimension, *positives, count}, indices);
}

uint64_t BloomPolicyCodec::decode_scratch_bytes(ByteSpan bytes, uint64_t dimension, uint64_t count) const {
  ByteReader reader(bytes);
  const auto seed = reader.get<uint64_t>();
  const auto positives = reader.get<uint32_t>();
  const auto bits = reader.get<uint32_t>();
  const auto probes = reader.get<uint32_t>();
  if (!seed || !positives || !bits || !probes) return 0;
  // decode() refuses these before it makes a picker.
  if (reader.remaining() != *bits / 8 || *probes > kBloomProbesMax || *positives > dimension) return 0;
  return picker_bytes({{*bits, *probes}, dimension, *positives, count});
}

}  // namespace millrace
