#include "worker/program/layer_sizes.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace millrace::program {
namespace {

constexpr size_t kSizesBytesMax = kLayersMax * 16;
constexpr std::string_view kBetweenSizes = ", \t\r\n";

Result<std::string> text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return fail(ErrorCode::kIo, "--layers @" + path + " cannot be read: " + std::generic_category().message(errno));
  }
  std::string text(kSizesBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kSizesBytesMax) {
    return fail(ErrorCode::kIo, "--layers @" + path + " has more than " + std::to_string(kSizesBytesMax) + " bytes");
  }
  return text;
}

Status add_size(std::string_view word, std::vector<uint64_t>& sizes) {
  uint64_t values = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), values);
  if (error != std::errc() || end != word.data() + word.size() || values == 0 || values > kLayerValuesMax) {
    return fail(ErrorCode::kInvalidArgument,
                "--layers: '" + std::string(word) + "' is not a number from 1 to " + std::to_string(kLayerValuesMax));
  }
  if (sizes.size() == kLayersMax) {
    return fail(ErrorCode::kInvalidArgument, "--layers has more than " + std::to_string(kLayersMax) + " layers");
  }
  sizes.push_back(values);
  return {};
}

}  // namespace

Result<std::vector<uint64_t>> layer_sizes(const std::string& text) {
  std::string numbers = text;
  if (text.starts_with('@')) {
    Result<std::string> read = text_of_file(text.substr(1));
    if (!read) return std::unexpected(read.error());
    numbers = std::move(*read);
  }
  std::vector<uint64_t> sizes;
  for (size_t begin = numbers.find_first_not_of(kBetweenSizes); begin != std::string::npos;) {
    const size_t end = std::min(numbers.find_first_of(kBetweenSizes, begin), numbers.size());
    if (Status status = add_size(std::string_view(numbers).substr(begin, end - begin), sizes); !status) {
      return std::unexpected(status.error());
    }
    begin = numbers.find_first_not_of(kBetweenSizes, end);
  }
  if (sizes.empty()) return fail(ErrorCode::kInvalidArgument, "--layers " + text + " names no layer");
  return sizes;
}

}  // namespace millrace::program
