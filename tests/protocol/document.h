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

/// The bytes of the block that starts with ```hex NAME in WIRE_FORMAT.md; what follows '#' on a line is a comment.
inline ByteBuffer documented_bytes(const std::string& block) {
  ByteBuffer bytes;
  bool inside = false;
  for (const std::string& line : document_lines("WIRE_FORMAT.md")) {
    if (line == "```hex " + block) {
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      std::istringstream words(line.substr(0, line.find('#')));
      for (std::string word; words >> word;) bytes.push_back(static_cast<uint8_t>(std::stoul(word, nullptr, 16)));
    }
  }
  EXPECT_FALSE(bytes.empty()) << "WIRE_FORMAT.md has no block " << block;
  return bytes;
}

}  // namespace millrace::protocol
