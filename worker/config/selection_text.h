#pragma once

#include <string>

#include "kernels/select/select.h"

namespace millrace::worker {

/// Returns a text that selection_from_text() reads back: numbers keep all bits.
std::string selection_text(const SelectionSpec& spec);

}  // namespace millrace::worker
