#pragma once

#include <string>

#include "tests/models/rounds/config.h"
#include "tests/models/rounds/state.h"

namespace millrace::model {

/// Returns the violation of the law that this state shows, as a sentence; empty: none. Judges members in good standing
/// and active shards of the table's epoch. A worker that is joining or rejoining is not bound yet.
std::string violation_of(const State& state, const Config& config);

/// The job is done: every shard active with all steps decided, every worker that lives in good standing with all of
/// them.
bool is_complete(const State& state, const Config& config);

/// A set of gradients as text: "{gA1.0 gB1.0}" is step 0 of the first lives of A and B.
std::string text_of(Mass mass);

inline char name_of(int worker) { return static_cast<char>('A' + worker); }

}  // namespace millrace::model
