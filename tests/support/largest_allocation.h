#pragma once

#include <cstddef>

namespace millrace::testing {

/// The largest single operator new of this process since the last reset. For programs that list largest_allocation.cc.
size_t largest_allocation();
void reset_largest_allocation();

}  // namespace millrace::testing
