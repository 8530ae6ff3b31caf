#pragma once

#include <string_view>

#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// Returns why no log can have that summary, for any meaning of its numbers. Its lists are not in their order, or an
/// incarnation is not an earlier one. Empty: a log may have it. For all readers of summaries that others wrote.
std::string_view disorder_in(const Summary& summary);

}  // namespace millrace::protocol
