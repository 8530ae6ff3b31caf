#include "worker/training/data/data_debian.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <unordered_set>
#include <utility>

#include "kernels/base/hash.h"
#include "worker/training/data/libsvm_writer.h"

namespace millrace::training {
namespace {

constexpr uint64_t kProgressPackages = 2048;
constexpr size_t kGramMin = 3;
constexpr size_t kGramMax = 5;
constexpr uint64_t kSplitSeed = 0x68656c64;  // "held": apart from the features' hash
constexpr const char* kIndexCommand = "LC_ALL=C apt-cache dumpavail 2>/dev/null";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string normalized(std::string_view text) {
  std::string out = " ";
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!blank) {
      out += lower(c);
    } else if (out.back() != ' ') {
      out += ' ';
    }
  }
  if (out.back() != ' ') out += ' ';
  return out;
}

bool held_out(std::string_view name, double share) {
  constexpr double kHashRange = 0x1p64;
  return static_cast<double>(hash64(name, kSplitSeed)) < share * kHashRange;
}

/// A package index, read line by line: a file, or what apt-cache prints.
class IndexSource {
 public:
  static Result<IndexSource> open(const std::string& path) {
    errno = 0;
    FILE* file = path.empty() ? popen(kIndexCommand, "re") : std::fopen(path.c_str(), "re");
    if (file == nullptr) return fail(ErrorCode::kIo, (path.empty() ? "apt-cache" : path) + ": " + std::strerror(errno));
    return IndexSource(file, path);
  }
  IndexSource(IndexSource&& other) noexcept
      : file_(std::exchange(other.file_, nullptr)),
        line_(std::exchange(other.line_, nullptr)),
        path_(std::move(other.path_)) {}
  IndexSource& operator=(IndexSource&&) = delete;
  ~IndexSource() {
    std::free(line_);
    if (file_ != nullptr) close();
  }

  /// The next line without its newline; false at the end.
  bool next(std::string_view& line) {
    const ssize_t length = getline(&line_, &capacity_, file_);
    if (length < 0) return false;
    line = {line_, static_cast<size_t>(length)};
    while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
    return true;
  }

  /// Called after the last line: returns the error, if any.
  Status finish(uint64_t packages) {
    const bool unreadable = std::ferror(file_) != 0;
    const std::string reason = std::strerror(errno);
    const int code = close();
    if (!path_.empty()) {
      if (unreadable) return fail(ErrorCode::kIo, path_ + ": " + reason);
      if (packages == 0)
        return fail(ErrorCode::kMalformed, path_ + ": it holds no package with a description and a section");
      return {};
    }
    if (WIFEXITED(code) && WEXITSTATUS(code) == 127) {
      return fail(ErrorCode::kUnavailable, "apt-cache is not on this machine: give a package index with --input");
    }
    if (packages == 0) {
      return fail(ErrorCode::kUnavailable,
                  "apt-cache has no package index here: run 'apt-get update' as root, then again");
    }
    return {};
  }

 private:
  IndexSource(FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
  int close() {
    FILE* file = std::exchange(file_, nullptr);
    return path_.empty() ? pclose(file) : std::fclose(file);
  }

  FILE* file_ = nullptr;
  char* line_ = nullptr;
  size_t capacity_ = 0;
  std::string path_;
};

/// Holds both output files and the progress so far.
struct Sink {
  LibsvmWriter train;
  LibsvmWriter held_out;
  DebianDataSummary summary;
  std::unordered_set<uint64_t> seen;  ///< hashes of names: an index lists some packages in several versions
  IndexBuffer indices;
  Buffer<float> values;

  Status add(const PackageParagraph& package, const DebianDataOptions& options) {
    if (package.name.empty() || package.section.empty() || package.description.empty()) return {};
    if (!seen.insert(hash64(package.name)).second) return {};
    text_features(package.description, options.dimension, indices, values);
    if (indices.empty()) return {};
    const bool library = is_library_section(package.section);
    ++summary.packages;
    summary.libraries += library ? 1 : 0;
    summary.entries += indices.size();
    if (options.progress && summary.packages % kProgressPackages == 0) options.progress(summary.packages);
    LibsvmWriter& writer = training::held_out(package.name, options.held_out_share) ? held_out : train;
    return writer.row(library ? 1 : -1, indices, values);
  }
};

}  // namespace

bool read_paragraph_line(std::string_view line, PackageParagraph& paragraph, std::string& field) {
  if (line.empty()) {
    field.clear();
    return true;
  }
  if (line.front() == ' ' || line.front() == '\t') {
    if (field == "Description") paragraph.description += line == " ." ? std::string("\n") : std::string(line);
    return false;
  }
  const size_t colon = std::min(line.find(':'), line.size());
  field = line.substr(0, colon);
  std::string_view value = line.substr(std::min(colon + 1, line.size()));
  value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
  // A translated index says Description-en where the plain one says Description.
  if (field == "Description-en") field = paragraph.description.empty() ? "Description" : "";
  if (field == "Package") paragraph.name = value;
  if (field == "Section") paragraph.section = value;
  if (field == "Description") paragraph.description = value;
  return false;
}

bool is_library_section(std::string_view section) {
  section.remove_prefix(section.rfind('/') == std::string_view::npos ? 0 : section.rfind('/') + 1);
  return section == "libs" || section == "libdevel" || section == "oldlibs";
}

void text_features(std::string_view text, uint64_t dimension, IndexBuffer& indices, Buffer<float>& values) {
  indices.clear();
  values.clear();
  const std::string line = normalized(text);
  if (line.size() < kGramMin) return;
  const std::string_view view = line;
  for (size_t length = kGramMin; length <= kGramMax; ++length) {
    for (size_t at = 0; at + length <= view.size(); ++at) {
      indices.push_back(static_cast<uint32_t>(hash64(view.substr(at, length)) % dimension));
    }
  }
  std::sort(indices.begin(), indices.end());
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  values.assign(indices.size(), 1 / std::sqrt(static_cast<float>(indices.size())));
}

Result<DebianDataSummary> make_debian_data(const DebianDataOptions& options) {
  auto source = IndexSource::open(options.input);
  if (!source) return std::unexpected(source.error());
  auto train = LibsvmWriter::create(options.train_path);
  if (!train) return std::unexpected(train.error());
  auto held = LibsvmWriter::create(options.held_out_path);
  if (!held) return std::unexpected(held.error());
  Sink sink{
      .train = std::move(*train), .held_out = std::move(*held), .summary = {}, .seen = {}, .indices = {}, .values = {}};

  PackageParagraph package;
  std::string field;
  std::string_view line;
  while (source->next(line)) {
    if (!read_paragraph_line(line, package, field)) continue;
    if (Status status = sink.add(package, options); !status) return std::unexpected(status.error());
    package = {};
  }
  if (Status status = sink.add(package, options); !status) return std::unexpected(status.error());
  if (Status status = source->finish(sink.summary.packages); !status) return std::unexpected(status.error());
  sink.summary.train_rows = sink.train.rows();
  sink.summary.held_out_rows = sink.held_out.rows();
  if (Status status = sink.train.commit(); !status) return std::unexpected(status.error());
  if (Status status = sink.held_out.commit(); !status) return std::unexpected(status.error());
  return sink.summary;
}

DataFiles debian_files(const std::string& folder, uint64_t dimension) {
  const std::string stem = folder + "/debian-" + std::to_string(dimension);
  return {stem + ".svm.gz", stem + ".test.svm.gz"};
}

bool made_before(const DataFiles& files, const std::function<void(const std::string&)>& say) {
  std::error_code ignored;
  if (!std::filesystem::exists(files.train, ignored) || !std::filesystem::exists(files.held_out, ignored)) return false;
  say("data: " + files.train + " (made by an earlier run)");
  return true;
}

Status keep_debian_data(const DataFiles& files, uint64_t dimension,
                        const std::function<void(const std::string&)>& say) {
  if (made_before(files, say)) return {};
  say("data: making " + files.train + " from the package index");
  DebianDataOptions make;
  make.train_path = files.train;
  make.held_out_path = files.held_out;
  make.dimension = dimension;
  const auto made = make_debian_data(make);
  if (!made) return std::unexpected(made.error());
  say(fmt::format("data: {} packages, {} of them libraries; {} rows to train on, {} held out", made->packages,
                  made->libraries, made->train_rows, made->held_out_rows));
  return {};
}

}  // namespace millrace::training
