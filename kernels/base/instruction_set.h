#pragma once

#include <string>

namespace millrace {

/// Returns the instruction set that the kernels run on at this processor, in Highway's word: "AVX2", "NEON", "SSE4".
std::string instruction_set();

}  // namespace millrace
