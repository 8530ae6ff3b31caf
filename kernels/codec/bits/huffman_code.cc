#include "kernels/codec/bits/huffman_code.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "kernels/base/check.h"

namespace millrace {

void huffman_lengths(std::span<const uint64_t> counts, std::span<uint8_t> lengths) {
  MILLRACE_CHECK(counts.size() == lengths.size() && counts.size() <= kHuffmanSymbolsMax, counts.size());
  struct Node {
    uint64_t weight;
    uint32_t number;
    bool operator>(const Node& other) const { return std::tie(weight, number) > std::tie(other.weight, other.number); }
  };
  std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
  std::array<uint32_t, 2 * kHuffmanSymbolsMax> parent{};
  for (uint32_t v = 0; v < counts.size(); ++v) {
    lengths[v] = 0;
    if (counts[v] > 0) open.push({counts[v], v});
  }
  if (open.size() == 1) {
    lengths[open.top().number] = 1;
    return;
  }
  uint32_t next = kHuffmanSymbolsMax;
  while (open.size() > 1) {
    const Node one = open.top();
    open.pop();
    const Node two = open.top();
    open.pop();
    parent[one.number] = parent[two.number] = next;
    open.push({one.weight + two.weight, next++});
  }
  for (uint32_t v = 0; v < counts.size(); ++v) {
    if (counts[v] == 0) continue;
    for (uint32_t node = v; node != next - 1; node = parent[node]) ++lengths[v];
  }
}

bool huffman_lengths_hold(std::span<const uint8_t> lengths) {
  uint64_t used = 0;  // in units of 2^-kHuffmanLengthMax
  size_t symbols = 0;
  for (const uint8_t length : lengths) {
    if (length > kHuffmanLengthMax) return false;
    if (length == 0) continue;
    used += uint64_t{1} << (kHuffmanLengthMax - length);
    ++symbols;
  }
  const uint64_t all = uint64_t{1} << kHuffmanLengthMax;
  return used == all || (symbols == 1 && used == all / 2);
}

HuffmanCode::HuffmanCode(std::span<const uint8_t> of_symbols) : symbols(static_cast<uint32_t>(of_symbols.size())) {
  MILLRACE_CHECK(symbols <= kHuffmanSymbolsMax, symbols);
  std::ranges::copy(of_symbols, lengths.begin());
  for (const uint8_t length : of_symbols) longest = std::max<uint32_t>(longest, length);
  MILLRACE_CHECK(longest <= kHuffmanLengthMax, longest);
  uint64_t code = 0;
  for (uint32_t length = 1; length <= longest; ++length) {
    for (size_t v = 0; v < symbols; ++v) {
      if (lengths[v] != length) continue;
      for (uint32_t bit = 0; bit < length; ++bit)
        codes[v] |= static_cast<uint32_t>(code >> (length - 1 - bit) & 1) << bit;
      ++code;
    }
    code <<= 1;
  }
}

HuffmanTable::HuffmanTable(const HuffmanCode& code) : code_(code), bits_(std::min(code.longest, kTableBits)) {
  table_.resize(size_t{1} << bits_);
  std::ranges::fill(table_, uint16_t{0});
  for (uint32_t v = 0; v < code.symbols; ++v) {
    if (code.lengths[v] == 0 || code.lengths[v] > bits_) continue;
    for (size_t at = code.codes[v]; at < table_.size(); at += size_t{1} << code.lengths[v]) {
      table_[at] = static_cast<uint16_t>(v | uint32_t{code.lengths[v]} << 8);
    }
  }
}

uint32_t HuffmanTable::take_long(BitReader& reader, uint64_t window) const {
  for (uint32_t v = 0; v < code_.symbols; ++v) {
    const uint32_t length = code_.lengths[v];
    if (length <= bits_ || (window & ((uint64_t{1} << length) - 1)) != code_.codes[v]) continue;
    reader.skip(length);
    return v;
  }
  return kHuffmanSymbolsMax;
}

}  // namespace millrace
