#include "kernels/base/version.h"

#include "millrace/millrace.h"

namespace millrace {
inline namespace v0 {

std::string_view version() { return project_version(); }

}  // namespace v0
}  // namespace millrace
