#include <algorithm>
#include <cstring>

#include "kernels/quantize/qsgd_kernels.h"

namespace millrace {
namespace {

// Eight codes at a time in one 64-bit word: neighbours close up in three steps, and spread in three.

// Of every two neighbours of kCodes codes that lie together, the lower ones.
template <uint32_t kBits, uint32_t kCodes>
constexpr uint64_t lower() {
  uint64_t mask = 0;
  for (uint32_t at = 0; at < 64; at += 16 * kCodes) mask |= ((uint64_t{1} << (kCodes * kBits)) - 1) << at;
  return mask;
}

template <uint32_t kBits, uint32_t kCodes>
constexpr uint64_t closed_up(uint64_t codes) {
  constexpr uint64_t kLower = lower<kBits, kCodes>();
  return (codes & kLower) | (codes >> kCodes * (8 - kBits) & kLower << kCodes * kBits);
}

template <uint32_t kBits, uint32_t kCodes>
constexpr uint64_t spread(uint64_t codes) {
  constexpr uint64_t kLower = lower<kBits, kCodes>();
  return (codes & kLower) | (codes << kCodes * (8 - kBits) & kLower << kCodes * 8);
}

template <uint32_t kBits>
constexpr uint64_t packed(uint64_t codes) {
  return closed_up<kBits, 4>(closed_up<kBits, 2>(closed_up<kBits, 1>(codes)));
}

template <uint32_t kBits>
constexpr uint64_t unpacked(uint64_t bits) {
  return spread<kBits, 1>(spread<kBits, 2>(spread<kBits, 4>(bits)));
}

template <uint32_t kBits>
void pack(const uint8_t* codes, size_t count, uint8_t* bytes) {
  const auto eight_at = [codes](size_t i) {
    uint64_t eight;
    std::memcpy(&eight, codes + i, 8);
    return packed<kBits>(eight);
  };
  const size_t whole = count / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    const uint64_t bits = eight_at(i);
    std::memcpy(bytes + i / 8 * kBits, &bits, kBits);
  }
  if (whole == count) return;
  const uint64_t bits = eight_at(whole);
  std::memcpy(bytes + whole / 8 * kBits, &bits, ((count - whole) * kBits + 7) / 8);
}

template <uint32_t kBits>
void unpack(const uint8_t* bytes, size_t count, uint8_t* codes) {
  const size_t byte_count = (count * kBits + 7) / 8;
  for (size_t i = 0; i < count; i += 8) {
    const size_t begin = i / 8 * kBits;
    uint64_t bits = 0;
    if (begin + sizeof(bits) <= byte_count) [[likely]] {
      std::memcpy(&bits, bytes + begin, sizeof(bits));  // the bits behind the eight codes are masked away
    } else {
      std::memcpy(&bits, bytes + begin, std::min<size_t>(kBits, byte_count - begin));
    }
    const uint64_t eight = unpacked<kBits>(bits);
    std::memcpy(codes + i, &eight, sizeof(eight));
  }
}

}  // namespace

void qsgd_pack(uint8_t* codes, size_t count, uint32_t bits, uint8_t* bytes) {
  std::fill(codes + count, codes + (count + 7) / 8 * 8, uint8_t{0});
  switch (bits) {
    case 1: return pack<1>(codes, count, bytes);
    case 2: return pack<2>(codes, count, bytes);
    case 3: return pack<3>(codes, count, bytes);
    case 4: return pack<4>(codes, count, bytes);
    case 5: return pack<5>(codes, count, bytes);
    case 6: return pack<6>(codes, count, bytes);
    case 7: return pack<7>(codes, count, bytes);
    default: std::memcpy(bytes, codes, count);
  }
}

void qsgd_unpack(const uint8_t* bytes, size_t count, uint32_t bits, uint8_t* codes) {
  switch (bits) {
    case 1: return unpack<1>(bytes, count, codes);
    case 2: return unpack<2>(bytes, count, codes);
    case 3: return unpack<3>(bytes, count, codes);
    case 4: return unpack<4>(bytes, count, codes);
    case 5: return unpack<5>(bytes, count, codes);
    case 6: return unpack<6>(bytes, count, codes);
    case 7: return unpack<7>(bytes, count, codes);
    default: std::memcpy(codes, bytes, count);
  }
}

}  // namespace millrace
