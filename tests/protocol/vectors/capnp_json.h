#pragma once

#include <set>
#include <string>

#include "tests/protocol/vectors/vector_json.h"

namespace millrace::testing {

/// Returns the fields of an envelope (messages.capnp) as Cap'n Proto itself reads them, under the schema's names. Bytes
/// are hex; of a union, the member that is set is given. An absent struct is null.
VectorJson envelope_json(ByteSpan envelope);

/// Adds "Struct.field" of every field of the envelope that is not at its default to `set`.
void note_fields_set(ByteSpan envelope, std::set<std::string>& set);

/// Returns "Struct.field" of every field of the schema.
std::set<std::string> schema_fields();

}  // namespace millrace::testing
