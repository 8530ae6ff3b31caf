#pragma once

#include <kj/string.h>

/// Included before any header of Cap'n Proto. kj 0.9 leaves these comparisons to the rewritten candidates of C++20.
/// Compilers that implement P2468 (clang 16 and later) do not consider those, because StringPtr has an operator!= as
/// well.
namespace kj {

inline bool operator==(const char* a, const StringPtr& b) { return StringPtr(a) == b; }
inline bool operator!=(const char* a, const StringPtr& b) { return !(StringPtr(a) == b); }

}  // namespace kj
