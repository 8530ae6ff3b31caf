#pragma once

#include <string_view>

#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// Why no log can have that summary, whatever its numbers mean: its lists are not in their order, or a life is not an
/// earlier one. Empty: one may have it. For all who read summaries that others wrote.
std::string_view disorder_in(const Summary& summary);

}  // namespace millrace::protocol
