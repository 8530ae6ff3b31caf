#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "tests/support/tree_paths.h"

namespace millrace::protocol {

/// The lines of a document of protocol/.
inline std::vector<std::string> document_lines(const std::string& name) {
  std::ifstream file(source_file("protocol/" + name));
  EXPECT_TRUE(file) << name;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// The documents of the wire format, each a name that document_lines() takes.
inline std::vector<std::string> wire_documents() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_file("protocol/wire"))) {
    if (entry.path().extension() == ".md") names.push_back("wire/" + entry.path().filename().string());
  }
  EXPECT_FALSE(names.empty());
  std::ranges::sort(names);
  return names;
}

/// Returns the words of the block that starts with ```BLOCK in a document of protocol/wire/, by line. '#' starts a
/// comment that ends with the line. There is one such block.
inline std::vector<std::vector<std::string>> documented_words(const std::string& block) {
  std::vector<std::vector<std::string>> lines;
  size_t blocks = 0;
  for (const std::string& name : wire_documents()) {
    bool inside = false;
    for (const std::string& line : document_lines(name)) {
      if (line == "```" + block) {
        inside = true;
        ++blocks;
      } else if (line == "```") {
        inside = false;
      } else if (inside) {
        std::istringstream words(line.substr(0, line.find('#')));
        lines.emplace_back();
        for (std::string word; words >> word;) lines.back().push_back(word);
      }
    }
  }
  EXPECT_EQ(blocks, 1u) << "blocks " << block << " in protocol/wire/*.md";
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
