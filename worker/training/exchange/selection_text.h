#pragma once

#include <string>

#include "kernels/select/select.h"

namespace millrace::cli {

/// Returns a text that selection_from_text() reads back: numbers keep all bits.
std::string selection_text(const SelectionSpec& spec);

}  // namespace millrace::cli
