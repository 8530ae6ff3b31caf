#include "kernels/base/version.h"

namespace millrace {

std::string_view project_version() { return MILLRACE_VERSION; }

std::string software_name() { return "millrace " + std::string(project_version()); }

}  // namespace millrace
