#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "worker/training/data/libsvm.h"

namespace millrace::testing {

/// Returns the dataset of LIBSVM text in memory. Errors as LibsvmParser.
inline Result<training::Dataset> parse_libsvm(std::string_view text, const std::string& name,
                                              const training::LibsvmOptions& options) {
  training::LibsvmParser parser(name, options);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (Status status = parser.line(text.substr(0, end)); !status) return std::unexpected(status.error());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::move(parser).finish();
}

}  // namespace millrace::testing
