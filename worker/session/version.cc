#include "millrace/millrace.h"

namespace millrace {

std::string_view version() { return MILLRACE_VERSION; }

}  // namespace millrace
