#pragma once

#include <string>

#include "tests/models/rounds/config.h"
#include "tests/models/rounds/state.h"

namespace millrace::model {

/// What the law forbids and this state shows, as a sentence; empty if nothing. Members in good standing and active
/// shards of the table's epoch are judged: whoever is on the way (back) in is not bound by anything yet.
std::string violation_of(const State& state, const Config& config);

/// The job is done: every shard active with all steps decided, every worker that lives in good standing with all of
/// them.
bool is_complete(const State& state, const Config& config);

/// A set of gradients as text: "{gA1.0 gB1.0}" is step 0 of the first lives of A and B.
std::string text_of(Mass mass);

inline char name_of(int worker) { return static_cast<char>('A' + worker); }

}  // namespace millrace::model
