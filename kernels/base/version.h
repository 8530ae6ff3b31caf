#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// Returns this build's version as CMakeLists.txt's project() has it: MAJOR.MINOR.PATCH. The only place that knows it.
std::string_view project_version();

/// Returns what a process tells its peers and shows in its status about its build: "millrace VERSION".
std::string software_name();

}  // namespace millrace
