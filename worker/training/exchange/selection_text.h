#pragma once

#include <string>

#include "kernels/select/select.h"

namespace millrace::cli {

/// The reverse of selection_from_text(): numbers so that they are read back to the bit.
std::string selection_text(const SelectionSpec& spec);

}  // namespace millrace::cli
