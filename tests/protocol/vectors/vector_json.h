#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"

/// The notation of protocol/vectors/*.json (its README.md): bytes, floats and random keys.
namespace millrace::testing {

using VectorJson = nlohmann::ordered_json;

inline std::string hex_text(ByteSpan bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

/// Returns the number's digits, all of them, the highest first.
template <typename Word>
std::string hex_number(Word number) {
  std::string text;
  for (size_t at = sizeof(Word); at-- > 0;) {
    const auto byte = static_cast<uint8_t>(number >> 8 * at);
    text += hex_text(ByteSpan(&byte, 1));
  }
  return text;
}

inline uint64_t number_of(const VectorJson& hex) { return std::stoull(hex.get<std::string>(), nullptr, 16); }

inline ByteBuffer bytes_of(const VectorJson& hex) {
  const auto text = hex.get<std::string>();
  EXPECT_EQ(text.size() % 2, 0U);
  ByteBuffer bytes;
  for (size_t at = 0; at + 1 < text.size(); at += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(text.substr(at, 2), nullptr, 16)));
  }
  return bytes;
}

/// Returns the float's shortest decimal that reads back as it, as JSON's number.
inline double decimal_of(float value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  double decimal = 0;
  std::from_chars(text, end, decimal);
  return decimal;
}

/// Adds `values` as two lists: the decimals under `name`, and under "NAME_bits" the bits, which count.
inline void put_values(VectorJson& json, const std::string& name, std::span<const float> values) {
  VectorJson decimals = VectorJson::array();
  VectorJson bits = VectorJson::array();
  for (const float value : values) {
    decimals.push_back(decimal_of(value));
    bits.push_back(hex_number(std::bit_cast<uint32_t>(value)));
  }
  json[name] = std::move(decimals);
  json[name + "_bits"] = std::move(bits);
}

/// Returns the values that put_values() added. Their decimals must say the same.
inline std::vector<float> get_values(const VectorJson& json, const std::string& name) {
  const VectorJson& bits = json.at(name + "_bits");
  const VectorJson& decimals = json.at(name);
  EXPECT_EQ(bits.size(), decimals.size());
  std::vector<float> values;
  for (size_t i = 0; i < bits.size(); ++i) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(number_of(bits[i]))));
    EXPECT_EQ(static_cast<float>(decimals.at(i).get<double>()), values.back());
  }
  return values;
}

inline void put_indices(VectorJson& json, const std::string& name, IndexSpan indices) {
  json[name] = std::vector<uint32_t>(indices.begin(), indices.end());
}

inline IndexBuffer get_indices(const VectorJson& json, const std::string& name) {
  const auto listed = json.at(name).get<std::vector<uint32_t>>();
  return {listed.begin(), listed.end()};
}

inline std::vector<uint32_t> words_of(IndexSpan indices) { return {indices.begin(), indices.end()}; }

/// The inputs of a random key, where a worker codes a contribution: random_key(seed, part, step, worker).
struct VectorDraws {
  uint64_t seed = 1;
  uint64_t part = 0;
  uint64_t step = 0;
  uint64_t worker = 0;

  RandomKey key() const { return random_key(seed, part, step, worker); }
};

inline VectorJson draws_json(const VectorDraws& draws) {
  const RandomKey key = draws.key();
  return {{"seed", draws.seed},
          {"part", draws.part},
          {"step", draws.step},
          {"worker", draws.worker},
          {"key", hex_number(key.low + (uint64_t{key.high} << 32))}};
}

}  // namespace millrace::testing
