#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// Returns this build's version as CMakeLists.txt's project() has it: MAJOR.MINOR.PATCH. The only place that knows it.
std::string_view project_version();

/// Returns the name and version of this build: "millrace VERSION". A process sends it to its peers and shows it in its
/// status.
std::string software_name();

}  // namespace millrace
