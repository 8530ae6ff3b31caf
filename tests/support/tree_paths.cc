#include "tests/support/tree_paths.h"

namespace millrace {

std::string source_file(const std::string& below_root) { return MILLRACE_SOURCE_DIR "/" + below_root; }
std::string built_file(const std::string& below_build) { return MILLRACE_BUILD_DIR "/" + below_build; }

}  // namespace millrace
