#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::testing {

/// Bits as text, the first one first; bytes take theirs from the lowest on, the last is filled with zeros.
inline std::vector<uint8_t> packed(const std::string& bits) {
  std::vector<uint8_t> bytes((bits.size() + 7) / 8, 0);
  for (size_t i = 0; i < bits.size(); ++i) bytes[i / 8] |= static_cast<uint8_t>((bits[i] == '1') << (i % 8));
  return bytes;
}

/// The lowest `count` bits of a number, the lowest first.
inline std::string low_bits(uint64_t value, uint64_t count) {
  std::string text;
  for (uint64_t i = 0; i < count; ++i) text += (value >> i & 1) != 0 ? '1' : '0';
  return text;
}

/// Canonical Huffman codes as text by the definitions: the two lightest are joined, of equal ones those with the
/// smaller number.
struct HuffmanOracle {
  std::vector<uint32_t> lengths;
  std::vector<std::string> codes;

  explicit HuffmanOracle(const std::vector<uint64_t>& counts) : lengths(counts.size(), 0), codes(counts.size()) {
    struct Tree {
      uint64_t weight;
      uint64_t number;
      std::vector<size_t> leaves;
    };
    std::vector<Tree> trees;
    for (size_t v = 0; v < counts.size(); ++v) {
      if (counts[v] > 0) trees.push_back({counts[v], v, {v}});
    }
    if (trees.size() == 1) lengths[trees[0].leaves[0]] = 1;
    for (uint64_t next = 256; trees.size() > 1; ++next) {
      std::ranges::sort(trees, [](const Tree& a, const Tree& b) {
        return a.weight != b.weight ? a.weight < b.weight : a.number < b.number;
      });
      Tree joined{trees[0].weight + trees[1].weight, next, trees[0].leaves};
      joined.leaves.insert(joined.leaves.end(), trees[1].leaves.begin(), trees[1].leaves.end());
      for (const size_t leaf : joined.leaves) ++lengths[leaf];
      trees.erase(trees.begin(), trees.begin() + 2);
      trees.push_back(joined);
    }
    std::string code;
    for (uint32_t length = 1; length <= 64; ++length) {
      for (size_t v = 0; v < lengths.size(); ++v) {
        if (lengths[v] != length) continue;
        if (!code.empty()) {  // plus one, then as long as this one
          size_t at = code.size();
          while (at > 0 && code[at - 1] == '1') code[--at] = '0';
          if (at > 0) code[at - 1] = '1';
        }
        code.resize(length, '0');
        codes[v] = code;
      }
    }
  }
};

}  // namespace millrace::testing
