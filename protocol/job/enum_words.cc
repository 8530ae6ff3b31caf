#include "protocol/job/enum_words.h"

namespace millrace::protocol {

bool known(SelectionId value) { return find_selection(value) != nullptr; }

bool known(Optimizer value) { return find_optimizer(value) != nullptr; }

bool known(IndexCodecId value) { return value == IndexCodecId::kNone || find_index_codec(value) != nullptr; }

bool known(ValueCodecId value) { return find_value_codec(value) != nullptr; }

}  // namespace millrace::protocol
