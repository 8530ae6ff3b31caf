#include "kernels/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace millrace {

void check_failed(const char* file, int line, const char* condition, const std::string& operands) {
  std::fprintf(stderr, "%s:%d: check failed: %s  %s\n", file, line, condition, operands.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace millrace
