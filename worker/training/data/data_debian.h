#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::training {

struct DebianDataOptions {
  std::string input;       ///< a file in the form of `apt-cache dumpavail`; empty: that command's output
  std::string train_path;  ///< .gz: compressed
  std::string held_out_path;
  uint64_t dimension = 16777216;                         ///< 1 .. 2^32
  double held_out_share = 0.1;                           ///< in [0, 1)
  std::function<void(uint64_t packages)> progress = {};  ///< every few thousand packages; empty: none
};

struct DebianDataSummary {
  uint64_t packages = 0;   ///< with a description and a section, each name once
  uint64_t libraries = 0;  ///< of these, the positive class
  uint64_t train_rows = 0;
  uint64_t held_out_rows = 0;
  uint64_t entries = 0;  ///< non-zeros in both files
};

/// Makes a classification task of a Debian package index: is a package a library, told from its description alone?
///
/// label      +1 where the Section, its area ("contrib/") aside, is libs, libdevel or oldlibs; else -1.
/// features   text_features() of the description.
/// held out   packages by a hash of their name, so that a package is on the same side on every machine.
/// Errors     io: input unreadable, output not written (old files stay). unavailable: no apt-cache, or its index is
///            empty. malformed: the input holds no package with description and section.
Result<DebianDataSummary> make_debian_data(const DebianDataOptions& options);

struct DataFiles {
  std::string train;
  std::string held_out;
};

/// Returns the files of make_debian_data(), in a folder that lasts: made once for each dimension.
///
/// say  called with a line at a time
DataFiles debian_files(const std::string& folder, uint64_t dimension);
Status keep_debian_data(const DataFiles& files, uint64_t dimension, const std::function<void(const std::string&)>& say);

/// Returns whether both are there. They appear whole or not at all, the held-out one last.
bool made_before(const DataFiles& files, const std::function<void(const std::string&)>& say);

/// Holds the used fields of a package's paragraph.
struct PackageParagraph {
  std::string name;
  std::string section;
  std::string description;  ///< with its continuation lines, where the index carries them
};

/// Adds one line of a package index to the paragraph being read. True: the line was empty, the paragraph is complete.
/// `field` is the parser's memory of the field that continuation lines belong to.
bool read_paragraph_line(std::string_view line, PackageParagraph& paragraph, std::string& field);

/// Returns whether a section is libs, libdevel or oldlibs, in any area.
bool is_library_section(std::string_view section);

/// Hashes the character 3- to 5-grams of `text` into [0, dimension). ASCII letters are in lower case, runs of blanks
/// are one space, and one space is at either end. Each that occurs has the value 1 / sqrt(count of them), so that a row
/// has norm 1.
///
/// indices  out: strictly increasing; empty when the text is.
void text_features(std::string_view text, uint64_t dimension, IndexBuffer& indices, Buffer<float>& values);

}  // namespace millrace::training
