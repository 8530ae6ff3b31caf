#include "worker/bench/kernels/hostile_codes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "kernels/base/bytes.h"
#include "kernels/base/random.h"
#include "kernels/codec/bloom/bloom_filter.h"

namespace millrace::bench {
namespace {

constexpr std::array<uint32_t, 6> kConstants = {0x00, 0xff, 0x01, 0x80, 0x55, 0x24};

void fill_random(std::span<uint8_t> bytes, RandomSequence& random) {
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next_u32());
}

void visit_truncated(ByteSpan good, uint64_t count, const VisitHostile& visit) {
  for (const size_t part : {size_t{1}, good.size() / 4, good.size() / 2, good.size() - 9, good.size() - 1}) {
    if (part >= good.size()) continue;
    visit({"cut to " + std::to_string(part), ByteBuffer(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(part)),
           count});
  }
}

void visit_flips(ByteSpan good, uint64_t count, RandomSequence& random, const VisitHostile& visit) {
  constexpr size_t kHeader = 24;
  constexpr size_t kInBody = 64;
  const auto flip = [&](uint64_t bit) {
    ByteBuffer bytes(good.begin(), good.end());
    bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ 1u << (bit % 8));
    visit({"bit " + std::to_string(bit) + " flipped", std::move(bytes), count});
  };
  for (uint64_t bit = 0; bit < 8 * std::min(kHeader, good.size()); ++bit) flip(bit);
  for (size_t i = 0; i < kInBody && good.size() > kHeader; ++i) flip(random.next_below(8 * good.size()));
}

/// Calls `with(count)` for false counts that a malicious peer may send.
template <typename With>
void for_each_lie(uint64_t count, uint64_t count_max, size_t bytes, const With& with) {
  const std::set<uint64_t> lies = {
      0,          1,        count - std::min<uint64_t>(count, 1), count, count + 1, 2 * count, 4 * bytes, 8 * bytes,
      64 * bytes, count_max};
  for (const uint64_t lie : lies) {
    if (lie <= count_max) with(lie);
  }
}

/// The first bytes of the good code, and then others.
void visit_replaced(ByteSpan good, uint64_t count, uint64_t count_max, RandomSequence& random,
                    const VisitHostile& visit) {
  for (const size_t kept : {0, 1, 4, 8, 12, 16, 20}) {
    if (kept >= good.size()) break;
    ByteBuffer bytes(good.begin(), good.end());
    const std::span<uint8_t> body = std::span(bytes).subspan(kept);
    const auto with_all_counts = [&](const std::string& what) {
      for_each_lie(count, count_max, bytes.size(), [&](uint64_t lie) {
        visit({what + " behind " + std::to_string(kept) + ", count " + std::to_string(lie), bytes, lie});
      });
    };
    for (const uint32_t constant : kConstants) {
      std::ranges::fill(body, static_cast<uint8_t>(constant));
      with_all_counts("bytes " + std::to_string(constant));
    }
    fill_random(body, random);
    with_all_counts("random bytes");
  }
}

// -------------------------------------------------------------------------------------------------------- crafted ones

/// `length` bytes: the header, then `unit` again and again.
ByteBuffer repeated(const ByteBuffer& header, const ByteBuffer& unit, size_t length) {
  ByteBuffer bytes = header;
  while (bytes.size() + unit.size() <= length) bytes.insert(bytes.end(), unit.begin(), unit.end());
  return bytes;
}

/// Blocks of 256 gaps under every parameter: all quotients 0, and one as long as can be.
void visit_gap_blocks(size_t length, uint64_t dimension, const VisitHostile& visit) {
  constexpr size_t kBlock = 256;
  for (const uint32_t shift : {0, 1, 24, 25, 31}) {
    ByteBuffer block(1 + kBlock / 8 * shift, 0);
    block[0] = static_cast<uint8_t>(shift);
    ByteBuffer long_block = block;
    block.insert(block.end(), kBlock / 8, 0xff);
    long_block.insert(long_block.end(), 1024 - kBlock / 8, 0);
    long_block.insert(long_block.end(), kBlock / 8, 0xff);
    for (const auto& [name, unit] : {std::pair("short", &block), std::pair("long", &long_block)}) {
      const ByteBuffer bytes = repeated({}, *unit, length);
      const uint64_t count = std::min(dimension, bytes.size() / unit->size() * kBlock);
      visit({std::string(name) + " blocks, parameter " + std::to_string(shift), bytes, count});
    }
  }
  ByteBuffer tail(std::min<size_t>(length, 1025), 0);
  tail.back() = 0x80;
  visit({"a quotient of 8191", tail, 1});
}

/// A code of one parameter and many short, or few long, unary runs.
void visit_unary(size_t length, uint64_t dimension, const VisitHostile& visit) {
  for (const size_t header : {0, 1, 4}) {
    for (const uint32_t parameter : {0, 1, 31}) {
      for (const size_t zeros : {0, 1, 7, 63, 4095}) {
        ByteBuffer unit(zeros, 0);
        unit.push_back(zeros == 0 ? 0xff : 0x80);
        ByteBuffer start(header, 0);
        if (header > 0) start[0] = static_cast<uint8_t>(parameter);
        const ByteBuffer bytes = repeated(start, unit, length);
        const uint64_t count =
            std::min<uint64_t>(dimension, (bytes.size() - header) / unit.size() * (zeros == 0 ? 8 : 1));
        visit({"parameter " + std::to_string(parameter) + ", runs of " + std::to_string(8 * zeros), bytes, count});
      }
    }
  }
}

/// As many containers as fit: of one entry, and of runs of one.
void visit_containers(size_t length, uint64_t dimension, const VisitHostile& visit) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  const auto number = static_cast<uint32_t>(std::min<size_t>(65'536, length / 10));
  writer.put(uint32_t{12'346});
  writer.put(number);
  for (uint32_t c = 0; c < number; ++c) {
    writer.put(static_cast<uint16_t>(c));
    writer.put(uint16_t{0});
  }
  bytes.resize(bytes.size() + size_t{6} * number, 0);
  visit({"containers of one", bytes, std::min<uint64_t>(number, dimension)});
  const size_t room = (length - std::min<size_t>(length, 32)) / 4;
  const auto runs = static_cast<uint32_t>(std::min<uint64_t>({room, 32'768, dimension / 2}));
  bytes.clear();
  writer.put(uint32_t{12'347});
  writer.put(uint8_t{1});
  writer.put(uint16_t{0});
  writer.put(static_cast<uint16_t>(runs - 1));
  writer.put(static_cast<uint16_t>(runs));
  for (uint32_t r = 0; r < runs; ++r) {
    writer.put(static_cast<uint16_t>(2 * r));
    writer.put(uint16_t{0});
  }
  if (runs > 0) visit({"runs of one", bytes, runs});
}

/// A filter of `length` bytes of which a share of the bits is set, with every number of hash functions. Its positives
/// are counted, so that it is all right but for its fill.
void visit_filters(const IndexCodec& codec, size_t length, uint64_t dimension, const VisitHostile& visit) {
  constexpr uint64_t kSeed = 7;
  const bool says_positives = codec.id() != IndexCodecId::kBloom;
  const size_t header = says_positives ? 20 : 16;
  if (length < header + 4) return;
  const auto bits = static_cast<uint32_t>((length - header) / 4 * 32);
  for (const double fill : {0.5, 0.6, 0.68, 0.75, 0.83, 0.92, 1.0}) {
    RandomSequence random(RandomKey::from(kSeed));
    ByteBuffer words(bits / 8, 0);
    for (uint32_t bit = 0; bit < bits; ++bit) {
      if (random.next_unit() < fill) words[bit / 8] = static_cast<uint8_t>(words[bit / 8] | 1u << (bit % 8));
    }
    for (const uint32_t probes : {1, 2, 3, 4, 6, 8, 12, 16, 24, 30, 32}) {
      BloomFilter filter{BloomHashes::from(kSeed, bits, probes), {}};
      filter.words.resize(bits / 32);
      std::memcpy(filter.words.data(), words.data(), words.size());
      uint64_t positives = 0;
      filter.scan(dimension, [&](IndexSpan some) {
        positives += some.size();
        return true;
      });
      ByteBuffer bytes;
      ByteWriter writer(bytes);
      writer.put(kSeed);
      if (says_positives) writer.put(static_cast<uint32_t>(positives));
      filter.put(bytes);
      const std::string name = std::to_string(fill) + " of a filter set, probes " + std::to_string(probes);
      std::set<uint64_t> counts = {positives, dimension, positives / 2};
      // As many as a good filter of this shape is of.
      counts.insert(std::min<uint64_t>(static_cast<uint64_t>(0.693 * bits / probes), positives));
      for (const uint64_t count : counts) visit({name + ", count " + std::to_string(count), bytes, count});
    }
  }
}

}  // namespace

void visit_hostile_codes(ByteSpan good, uint64_t count, uint64_t count_max, uint64_t seed, const VisitHostile& visit) {
  if (good.empty()) return;
  RandomSequence random(RandomKey::from(seed));
  visit_truncated(good, count, visit);
  visit_flips(good, count, random, visit);
  for_each_lie(count, count_max, good.size(), [&](uint64_t lie) {
    if (lie != count) visit({"count " + std::to_string(lie), ByteBuffer(good.begin(), good.end()), lie});
  });
  visit_replaced(good, count, count_max, random, visit);
}

void visit_crafted_codes(const IndexCodec& codec, size_t bytes, uint64_t dimension, const VisitHostile& visit) {
  if (codec.name() == "gap") visit_gap_blocks(bytes, dimension, visit);
  if (codec.name() == "rice" || codec.name() == "golomb" || codec.name().starts_with("elias"))
    visit_unary(bytes, dimension, visit);
  if (codec.name() == "roaring") visit_containers(bytes, dimension, visit);
  if (codec.takes_rate() && codec.name() != "bloom_blocked") visit_filters(codec, bytes, dimension, visit);
}

}  // namespace millrace::bench
