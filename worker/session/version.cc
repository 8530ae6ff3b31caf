#include "kernels/base/version.h"

#include "millrace/millrace.h"

namespace millrace {

std::string_view version() { return project_version(); }

}  // namespace millrace
