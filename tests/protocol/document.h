#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "tests/support/tree_paths.h"

namespace millrace::protocol {

/// The lines of a document of this folder.
inline std::vector<std::string> document_lines(const std::string& name) {
  std::ifstream file(source_file("protocol/" + name));
  EXPECT_TRUE(file) << name;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// The words of the block that starts with ```BLOCK in WIRE_FORMAT.md, by line; what follows '#' on a line is a comment.
inline std::vector<std::vector<std::string>> documented_words(const std::string& block) {
  std::vector<std::vector<std::string>> lines;
  bool inside = false;
  for (const std::string& line : document_lines("WIRE_FORMAT.md")) {
    if (line == "```" + block) {
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      std::istringstream words(line.substr(0, line.find('#')));
      lines.emplace_back();
      for (std::string word; words >> word;) lines.back().push_back(word);
    }
  }
  EXPECT_FALSE(lines.empty()) << "WIRE_FORMAT.md has no block " << block;
  return lines;
}

/// The bytes of the block that starts with ```hex NAME.
inline ByteBuffer documented_bytes(const std::string& block) {
  ByteBuffer bytes;
  for (const auto& line : documented_words("hex " + block)) {
    for (const std::string& word : line) bytes.push_back(static_cast<uint8_t>(std::stoul(word, nullptr, 16)));
  }
  return bytes;
}

}  // namespace millrace::protocol
