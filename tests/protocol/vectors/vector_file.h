#pragma once

#include <string>

#include "tests/protocol/vectors/vector_json.h"

namespace millrace::testing {

/// A file of protocol/vectors: an object of fields, of which some are lists with an object on each line.
///
/// format   the format of the bytes, and `version` its number; 0: a format without versions.
/// change   the action to take where the bytes have to change.
struct VectorFile {
  std::string name;
  std::string format;
  uint64_t version = 0;
  std::string change;

  std::string path() const;
};

/// Returns the head of such a file: format, and version where there is one.
VectorJson vector_file_head(const VectorFile& file);

/// Reads the file of the source tree.
VectorJson read_vectors(const VectorFile& file);

/// Compares the file with `now`, which production code has made. With MILLRACE_WRITE_VECTORS=1 in the environment
/// writes it instead, unless bytes of a vector have changed and the version has not.
///
/// A vector with "encoding": "free" keeps the bytes that the file has, as long as its input is the same.
void expect_vectors(const VectorFile& file, VectorJson now);

/// Calls `refused(cut)` for every truncation of `bytes`; each must return true. Of more than 512 bytes some are left
/// out.
template <typename Refused>
void expect_truncations_refused(const ByteBuffer& bytes, const Refused& refused) {
  const size_t stride = bytes.size() > 512 ? bytes.size() / 256 : 1;
  for (size_t length = 0; length < bytes.size(); ++length) {
    if (length % stride != 0 && length + 1 != bytes.size()) continue;
    // Memory of its own, so that AddressSanitizer sees a read behind it.
    const ByteBuffer cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_TRUE(refused(cut)) << "the first " << length << " of " << bytes.size() << " bytes were read";
  }
}

}  // namespace millrace::testing
