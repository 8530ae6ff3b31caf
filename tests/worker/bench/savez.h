#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace millrace::bench {

/// A stored archive of one array, as numpy.savez writes it: sizes in the extra field of the member's header.
inline std::string savez(const std::string& name, const std::string& header, const std::vector<float>& values) {
  std::string npy =
      std::string("\x93NUMPY\x01\x00", 8) + std::string(1, static_cast<char>(header.size())) + '\0' + header;
  const size_t values_at = npy.size();
  npy.resize(values_at + values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(npy.data() + values_at, values.data(), values.size() * sizeof(float));
  const auto number = [](uint64_t value, size_t bytes) {
    std::string text;
    for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  return number(0x04034b50, 4) + number(45, 2) + number(0, 2) + number(0, 2) + number(0, 8) + number(0xffffffff, 4) +
         number(0xffffffff, 4) + number(name.size(), 2) + number(20, 2) + name + number(1, 2) + number(16, 2) +
         number(npy.size(), 8) + number(npy.size(), 8) + npy + "PK\x01\x02";
}

}  // namespace millrace::bench
