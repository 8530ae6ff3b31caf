#pragma once

#include <string>

namespace millrace {

/// Returns the absolute path of a file of the source tree, given its path below the root. Only tree_paths.cc is
/// compiled with the machine's paths, so that the tests' objects are the same in every clone. Begin the argument with a
/// string literal: tests/lint/affected.py takes it as the prefix of every path that the call reads.
std::string source_file(const std::string& below_root);

/// Returns the absolute path of a file of this build, given its path below the build folder (programs are in bin/).
std::string built_file(const std::string& below_build);

}  // namespace millrace
