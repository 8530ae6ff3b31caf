#pragma once

#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/hash.h"
#include "tests/support/tree_paths.h"

/// The rule of protocol/wire/versions.md: a version number stands for exact bytes. tests/support/format_versions.txt
/// has a fingerprint for each version of each format; a test that makes a format's bytes looks whether they are still
/// those.
namespace millrace::testing {

/// The bytes of a format as they are now, added up to one number.
class Fingerprint {
 public:
  Fingerprint& add(ByteSpan bytes) {
    const uint64_t size = bytes.size();
    hash_ = hash64(bytes, hash64(std::string_view(std::to_string(size)), hash_));
    return *this;
  }
  Fingerprint& add_text(std::string_view text) {
    return add(ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  }
  /// Adds the file at an absolute path without its comments, which begin with `comment`, and without its white space.
  Fingerprint& add_source(const std::string& path, std::string_view comment) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    std::string text;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line.substr(0, line.find(comment)));
      for (std::string word; words >> word;) text += word;
    }
    return add_text(text);
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

struct KnownVersion {
  std::string format;
  uint64_t version = 0;
  uint64_t fingerprint = 0;
};

inline std::vector<KnownVersion> known_versions() {
  std::ifstream file(source_file("tests/support/format_versions.txt"));
  EXPECT_TRUE(file);
  std::vector<KnownVersion> known;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    KnownVersion one;
    std::string fingerprint;
    EXPECT_TRUE(words >> one.format >> one.version >> fingerprint) << line;
    one.fingerprint = std::stoull(fingerprint, nullptr, 16);
    known.push_back(one);
  }
  return known;
}

/// constant  what holds the version, and where: for the sentence that says what to do.
inline void expect_format_version(const std::string& format, uint64_t version, const Fingerprint& now,
                                  const std::string& constant) {
  KnownVersion last;
  for (const KnownVersion& one : known_versions()) {
    if (one.format == format) last = one;
  }
  char fingerprint[20];
  std::snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, now.value());
  const uint64_t next = version > last.version ? version : last.version + 1;
  const std::string line = format + " " + std::to_string(next) + " " + fingerprint;
  if (version == last.version) {
    EXPECT_EQ(now.value(), last.fingerprint)
        << "the bytes of format '" << format << "' have changed, and its version has not. Raise " << constant << " to "
        << next << " (protocol/wire/versions.md), and append this line to tests/support/format_versions.txt: " << line;
  } else {
    EXPECT_EQ(version, last.version) << constant << " is not the last version of '" << format
                                     << "' in tests/support/format_versions.txt: append this line to it: " << line;
  }
}

}  // namespace millrace::testing
