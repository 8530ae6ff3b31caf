#include "kernels/codec/sketch/sketch_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/bloom/bloom_filter.h"
#include "kernels/codec/bucket_mean.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/stream/index_sort.h"

namespace millrace {
namespace {

constexpr uint64_t kSketchValuesHeaderBytes = 12;
constexpr uint32_t kBucketsMax = 128;    // of a sign
constexpr uint64_t kValuesABucket = 16;  // at least, but in the last one
constexpr uint32_t kTagBits = 3;
constexpr uint8_t kZeroTag = 255;

uint64_t sketch_values_bytes_of_bits(uint64_t bits) { return bits / 8 + (bits % 8 != 0); }

/// Index of value i: its place in a dense stream.
uint32_t index_of(IndexSpan indices, size_t i) { return indices.empty() ? static_cast<uint32_t>(i) : indices[i]; }

void sort_keys(Buffer<MagnitudeKey>& keys) {
  Buffer<uint64_t> entries(keys.size());
  Buffer<uint64_t> scratch;
  for (size_t i = 0; i < keys.size(); ++i) entries[i] = index_key(keys[i], static_cast<uint32_t>(i));
  sort_by_index(entries, 31, scratch);
  std::ranges::transform(entries, keys.begin(), index_of_key);
}

/// The smallest magnitude of each bucket, as keys, increasing. REQUIRES: sorted.
Buffer<MagnitudeKey> quantiles(const Buffer<MagnitudeKey>& keys) {
  const uint64_t count = keys.size();
  const uint64_t buckets = std::min<uint64_t>(kBucketsMax, (count + kValuesABucket - 1) / kValuesABucket);
  Buffer<MagnitudeKey> bounds;
  for (uint64_t j = 0; j < buckets; ++j) {
    const MagnitudeKey bound = keys[j * count / buckets];
    if (bounds.empty() || bound != bounds.back()) bounds.push_back(bound);
  }
  return bounds;
}

/// By sign.
struct Bounds {
  std::array<Buffer<MagnitudeKey>, 2> smallest;    ///< of each bucket
  std::array<Buffer<MagnitudeKey>, 2> stands_for;  ///< decoded value of each bucket; as many, increasing
};

/// The mean of each bucket's bounds, rounded down: it stays in its bucket, so that means increase as bounds do.
///
/// largest   the upper bound of the last bucket.
Buffer<MagnitudeKey> means_of_bounds(const Buffer<MagnitudeKey>& bounds, MagnitudeKey largest) {
  Buffer<MagnitudeKey> means;
  for (size_t j = 0; j < bounds.size(); ++j) {
    const MagnitudeKey next = j + 1 < bounds.size() ? bounds[j + 1] : largest;
    means.push_back(magnitude_key(mean_rounded_down(magnitude_of_key(bounds[j]), magnitude_of_key(next))));
  }
  return means;
}

Bounds bounds_of(std::span<const float> values, BucketValue value) {
  Bounds bounds;
  for (size_t sign = 0; sign < 2; ++sign) {
    Buffer<MagnitudeKey> keys;
    for (const float one : values) {
      if (one != 0 && std::signbit(one) == (sign == 1)) keys.push_back(magnitude_key(one));
    }
    sort_keys(keys);
    bounds.smallest[sign] = quantiles(keys);
    bounds.stands_for[sign] = value == BucketValue::kSmallest || keys.empty()
                                  ? bounds.smallest[sign]
                                  : means_of_bounds(bounds.smallest[sign], keys.back());
  }
  return bounds;
}

/// The last bucket that is not over the key; the first is not. Without branches, which keys in no order would mislead.
uint32_t bucket_of(const Buffer<MagnitudeKey>& bounds, MagnitudeKey key) {
  size_t at = 0;
  for (size_t left = bounds.size(); left > 1;) {
    const size_t half = left / 2;
    at += bounds[at + half] <= key ? half : 0;
    left -= half;
  }
  return static_cast<uint32_t>(at);
}

/// Every value's tag and its bucket in the group.
struct Placed {
  Buffer<uint8_t> tags;
  Buffer<uint8_t> buckets;
  SketchCells cells;
  bool zeros = false;
};

Placed place(std::span<const float> values, const std::array<Buffer<MagnitudeKey>, 2>& bounds) {
  Placed placed;
  placed.tags.resize(values.size());
  placed.buckets.resize(values.size());
  SketchBuckets& shape = placed.cells.buckets;
  for (size_t sign = 0; sign < 2; ++sign) shape.of_sign[sign] = static_cast<uint32_t>(bounds[sign].size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) {
      placed.tags[i] = kZeroTag;
      placed.zeros = true;
      continue;
    }
    const uint32_t sign = std::signbit(values[i]) ? 1 : 0;
    const uint32_t bucket = bucket_of(bounds[sign], magnitude_key(values[i]));
    const uint32_t tag = sign * kSketchGroups + shape.group(sign, bucket);
    placed.tags[i] = static_cast<uint8_t>(tag);
    placed.buckets[i] = static_cast<uint8_t>(bucket - shape.first(tag));
    ++placed.cells.members[tag];
  }
  return placed;
}

void put_zeros(const Placed& placed, ByteBuffer& out) {
  if (!placed.zeros) return;
  BitWriter writer(out);
  for (const uint8_t tag : placed.tags) writer.put(tag == kZeroTag ? 0 : 1, 1);
  writer.finish();
}

void put_tags(const Placed& placed, ByteBuffer& out) {
  BitWriter writer(out);
  for (const uint8_t tag : placed.tags) {
    if (tag != kZeroTag) writer.put(tag, kTagBits);
  }
  writer.finish();
}

/// A code taken apart; nothing in it is copied.
struct Parsed {
  uint64_t seed = 0;
  ByteSpan which;  ///< empty: no zeros
  ByteSpan bounds;
  ByteSpan tags;
  ByteSpan cell_bytes;
  SketchCells cells;
};

/// How many bits of the first `count` are set; no count: others are as well.
std::optional<uint64_t> count_set(ByteSpan bits, uint64_t count) {
  uint64_t set = 0;
  for (const uint8_t byte : bits) set += static_cast<uint64_t>(std::popcount(byte));
  if (count % 8 != 0 && bits.back() >> (count % 8) != 0) return std::nullopt;
  return set;
}

/// Counts the values of every tag. False: a tag that cannot be.
bool count_tags(ByteSpan tags, uint64_t coded, SketchCells& cells) {
  BitReader reader(tags);
  for (uint64_t i = 0; i < coded; ++i) ++cells.members[reader.take(kTagBits)];
  for (uint32_t tag = 0; tag < kSketchTags; ++tag) {
    if (cells.members[tag] > 0 && cells.buckets.count(tag) == 0) return false;
  }
  return reader.at_end();
}

/// All but the cells is looked at, and in place.
std::optional<Parsed> take_apart(ByteSpan bytes, uint64_t count) {
  Parsed parsed;
  ByteReader reader(bytes);
  const auto seed = reader.get<uint64_t>();
  const auto positive = reader.get<uint8_t>();
  const auto negative = reader.get<uint8_t>();
  const auto zeros = reader.get<uint8_t>();
  const auto reserved = reader.get<uint8_t>();
  if (!seed || !positive || !negative || !zeros || !reserved) return std::nullopt;
  if (*positive > kBucketsMax || *negative > kBucketsMax || *zeros > 1 || *reserved != 0) return std::nullopt;
  parsed.seed = *seed;
  parsed.cells.buckets.of_sign = {*positive, *negative};
  uint64_t coded = count;
  if (*zeros == 1) {
    const auto which = reader.get_bytes(sketch_values_bytes_of_bits(count));
    if (!which) return std::nullopt;
    const auto set = count_set(*which, count);
    if (!set || *set == count) return std::nullopt;
    parsed.which = *which;
    coded = *set;
  }
  const auto bounds = reader.get_bytes((uint64_t{*positive} + *negative) * sizeof(float));
  if (!bounds) return std::nullopt;
  const auto tags = reader.get_bytes(sketch_values_bytes_of_bits(coded * kTagBits));
  if (!tags || !count_tags(*tags, coded, parsed.cells)) return std::nullopt;
  parsed.bounds = *bounds;
  parsed.tags = *tags;
  parsed.cell_bytes = *reader.get_bytes(reader.remaining());
  return parsed;
}

/// Returns the buckets' decoded values, the negative ones negative; empty: they are no magnitudes in order.
std::array<Buffer<float>, 2> values_of_buckets(const Parsed& parsed) {
  ByteReader reader(parsed.bounds);
  std::array<Buffer<float>, 2> values;
  for (size_t sign = 0; sign < 2; ++sign) {
    float last = 0;
    for (uint32_t b = 0; b < parsed.cells.buckets.of_sign[sign]; ++b) {
      const float bound = *reader.get<float>();
      if (!std::isfinite(bound) || bound <= last) return {};
      values[sign].push_back(sign == 1 ? -bound : bound);
      last = bound;
    }
  }
  return values;
}

}  // namespace

uint64_t SketchCells::count() const {
  uint64_t cells = 0;
  for (const uint64_t of_tag : members) cells += MinMaxSketch::cells_of(of_tag);
  return cells;
}

uint32_t SketchCells::bits(uint32_t tag) const {
  const uint32_t of_sign = buckets.of_sign[tag / kSketchGroups];
  return static_cast<uint32_t>(std::bit_width((of_sign + kSketchGroups - 1) / kSketchGroups - 1));
}

std::unexpected<Error> SketchValueCodec::malformed(const char* what) const {
  return fail(ErrorCode::kMalformed, std::string(name()) + ": " + what);
}

uint64_t SketchValueCodec::bytes_max(uint64_t count, const CodecSpec&) const {
  if (count == 0) return 0;
  const uint64_t bounds = std::min<uint64_t>(2 * kBucketsMax, count / kValuesABucket + 2);
  const uint64_t cells = (3 * count / 10 + kSketchTags) * kSketchRows;
  return kSketchValuesHeaderBytes + sketch_values_bytes_of_bits(count) + bounds * sizeof(float) +
         sketch_values_bytes_of_bits(count * kTagBits) + cell_bytes_max(cells);
}

Status SketchValueCodec::check(ByteSpan bytes, uint64_t count) const {
  if (count == 0) return bytes.empty() ? Status{} : Status(malformed("bytes for no values"));
  if (count <= kDimensionMax) {
    const auto parsed = take_apart(bytes, count);
    if (parsed && cells_fit(parsed->cells, parsed->cell_bytes)) return {};
  }
  return malformed("unknown parameters, or the length is not that of the values");
}

Status SketchValueCodec::encode(IndexSpan indices, std::span<const float> values, const EncodeOptions& options,
                                ByteBuffer& out, std::span<float> decoded) const {
  MILLRACE_CHECK(values.size() == decoded.size() && (indices.empty() || indices.size() == values.size()), values.size(),
                 decoded.size(), indices.size());
  if (max_key(values) >= kInfinityKey) {
    return fail(ErrorCode::kNonFinite, std::string(name()) + ": NaN or infinity among the values");
  }
  if (values.empty()) return {};
  const Bounds bounds = bounds_of(values, value_);
  const Placed placed = place(values, bounds.smallest);
  const uint64_t seed = bloom_seed(options);
  MinMaxSketch sketch(seed, placed.cells.members);
  for (size_t i = 0; i < values.size(); ++i) {
    if (placed.tags[i] != kZeroTag) sketch.insert(placed.tags[i], index_of(indices, i), placed.buckets[i]);
  }
  sketch.clear_unused_cells();

  ByteWriter writer(out);
  writer.put(seed);
  for (const auto& of_sign : bounds.stands_for) writer.put(static_cast<uint8_t>(of_sign.size()));
  writer.put(static_cast<uint8_t>(placed.zeros ? 1 : 0));
  writer.put(uint8_t{0});
  put_zeros(placed, out);
  for (const auto& of_sign : bounds.stands_for) writer.put_array(std::span<const MagnitudeKey>(of_sign));
  put_tags(placed, out);
  put_cells(placed.cells, sketch, out);

  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t tag = placed.tags[i];
    if (tag == kZeroTag) {
      decoded[i] = 0;
      continue;
    }
    const uint32_t sign = tag / kSketchGroups;
    const uint32_t bucket = placed.cells.buckets.first(tag) + sketch.query(tag, index_of(indices, i));
    const float magnitude = magnitude_of_key(bounds.stands_for[sign][bucket]);
    decoded[i] = sign == 1 ? -magnitude : magnitude;
  }
  return {};
}

Status SketchValueCodec::decode(ByteSpan bytes, IndexSpan indices, std::span<float> out) const {
  MILLRACE_CHECK(indices.empty() || indices.size() == out.size(), indices.size(), out.size());
  if (out.empty()) return bytes.empty() ? Status{} : Status(malformed("bytes for no values"));
  const auto parsed = take_apart(bytes, out.size());
  if (!parsed) return malformed("parameters that cannot be, or cut off");
  const SketchCells& cells = parsed->cells;
  const auto values = values_of_buckets(*parsed);
  if (values[0].size() != cells.buckets.of_sign[0] || values[1].size() != cells.buckets.of_sign[1]) {
    return malformed("buckets that are no magnitudes in order");
  }
  if (!cells_fit(cells, parsed->cell_bytes)) return malformed("the length is not that of the cells");
  MinMaxSketch sketch(parsed->seed, cells.members);
  if (!take_cells(cells, parsed->cell_bytes, sketch)) return malformed("cells that cannot be");
  BitReader tags(parsed->tags);
  for (size_t i = 0; i < out.size(); ++i) {
    if (!parsed->which.empty() && (parsed->which[i / 8] >> (i % 8) & 1) == 0) {
      out[i] = 0;
      continue;
    }
    const auto tag = static_cast<uint32_t>(tags.take(kTagBits));
    const uint32_t bucket = sketch.query(tag, index_of(indices, i));
    if (bucket >= cells.buckets.count(tag)) return malformed("a bucket that its group does not have");
    out[i] = values[tag / kSketchGroups][cells.buckets.first(tag) + bucket];
  }
  return {};
}

}  // namespace millrace
