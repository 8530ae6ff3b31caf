#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/quantize/qsgd_kernels.h"

namespace millrace {
namespace {

// Eight codes at a time in one 64-bit word: neighbours close up in three steps, and spread in three.
uint64_t packed4(uint64_t codes) {
  codes = (codes | codes >> 4) & 0x00FF00FF00FF00FFu;
  codes = (codes | codes >> 8) & 0x0000FFFF0000FFFFu;
  return (codes | codes >> 16) & 0xFFFFFFFFu;
}

uint64_t unpacked4(uint64_t bits) {
  bits = (bits | bits << 16) & 0x0000FFFF0000FFFFu;
  bits = (bits | bits << 8) & 0x00FF00FF00FF00FFu;
  return (bits | bits << 4) & 0x0F0F0F0F0F0F0F0Fu;
}

uint64_t packed2(uint64_t codes) {
  codes = (codes | codes >> 6) & 0x000F000F000F000Fu;
  codes = (codes | codes >> 12) & 0x000000FF000000FFu;
  return (codes | codes >> 24) & 0xFFFFu;
}

uint64_t unpacked2(uint64_t bits) {
  bits = (bits | bits << 24) & 0x000000FF000000FFu;
  bits = (bits | bits << 12) & 0x000F000F000F000Fu;
  return (bits | bits << 6) & 0x0303030303030303u;
}

template <uint32_t kBits>
void pack(const uint8_t* codes, size_t count, uint8_t* bytes) {
  using Packed = std::conditional_t<kBits == 4, uint32_t, uint16_t>;
  const auto eight_at = [codes](size_t i) {
    uint64_t eight;
    std::memcpy(&eight, codes + i, 8);
    return static_cast<Packed>(kBits == 4 ? packed4(eight) : packed2(eight));
  };
  const size_t whole = count / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    const Packed bits = eight_at(i);
    std::memcpy(bytes + i / 8 * kBits, &bits, kBits);
  }
  if (whole == count) return;
  const Packed bits = eight_at(whole);
  std::memcpy(bytes + whole / 8 * kBits, &bits, ((count - whole) * kBits + 7) / 8);
}

template <uint32_t kBits>
void unpack(const uint8_t* bytes, size_t count, uint8_t* codes) {
  using Packed = std::conditional_t<kBits == 4, uint32_t, uint16_t>;
  const auto put_eight = [codes](size_t i, Packed bits) {
    const uint64_t eight = kBits == 4 ? unpacked4(bits) : unpacked2(bits);
    std::memcpy(codes + i, &eight, 8);
  };
  const size_t whole = count / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    Packed bits;
    std::memcpy(&bits, bytes + i / 8 * kBits, kBits);
    put_eight(i, bits);
  }
  if (whole == count) return;
  Packed bits = 0;
  std::memcpy(&bits, bytes + whole / 8 * kBits, ((count - whole) * kBits + 7) / 8);
  put_eight(whole, bits);
}

}  // namespace

void qsgd_pack(uint8_t* codes, size_t count, uint32_t bits, uint8_t* bytes) {
  std::fill(codes + count, codes + (count + 7) / 8 * 8, uint8_t{0});
  if (bits == 2) {
    pack<2>(codes, count, bytes);
  } else if (bits == 4) {
    pack<4>(codes, count, bytes);
  } else {
    std::memcpy(bytes, codes, count);
  }
}

void qsgd_unpack(const uint8_t* bytes, size_t count, uint32_t bits, uint8_t* codes) {
  if (bits == 2) {
    unpack<2>(bytes, count, codes);
  } else if (bits == 4) {
    unpack<4>(bytes, count, codes);
  } else {
    std::memcpy(codes, bytes, count);
  }
}

}  // namespace millrace
