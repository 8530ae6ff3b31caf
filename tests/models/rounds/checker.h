#pragma once

#include <string>
#include <vector>

#include "tests/models/rounds/config.h"
#include "tests/models/rounds/moves.h"

namespace millrace::model {

struct Report {
  Verdict verdict = Verdict::kClean;
  std::string sentence;       ///< of the violation
  std::vector<Action> trace;  ///< the moves that lead to it from the initial state
  uint64_t states = 0, transitions = 0;
  uint64_t depth = 0;
  uint64_t completed = 0;  ///< walks that ended with the job done
};

/// Searches all states breadth first; a 64-bit hash identifies a state. The first violation has a shortest trace.
///
/// Progress   on request: from every state with a live majority the job can be completed without faults and restarts,
///            and from every state with restarts. The first state for which that does not hold is the trace.
/// Memory     about 40 bytes a state, 12 a transition with progress, and two frontiers.
Report search(const Config& config);

/// `config.walks` random walks. Faults are taken less often than other moves. Stuck is a state without any move.
Report walk(const Config& config);

/// The trace, a line a move.
std::string text_of(const Config& config, const std::vector<Action>& trace);

}  // namespace millrace::model
