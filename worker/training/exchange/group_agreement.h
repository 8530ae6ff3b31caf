#pragma once

#include <string>

#include "worker/peer/group/peer_group.h"
#include "worker/program/outcome.h"
#include "worker/training/exchange/training_options.h"

namespace millrace::cli {

/// What all ranks make of what each of them came to, the same on all: nothing, where all did well; else the error of
/// the lowest rank that did not, with its number in front where others have another one or none. Ends when all ranks
/// have called it.
///
/// Errors   beside these the group's, where it has ended (PeerGroup::failure()).
Status agree(peer::PeerGroup& group, std::string what, const Status& own);

/// Ends the group, on all ranks, with this error of this rank's, so that nobody waits for it. Returns the error.
std::unexpected<Error> end_group(peer::PeerGroup& group, Error error);

/// Returns where an error of a rank that works in the group has its cause: in the rank itself while the group runs; in
/// the servers where the gradients go over servers and a rank ended the group by end_group(); else in the ranks.
ErrorPlace place_of(const peer::PeerGroup& group, ExchangePath path);

}  // namespace millrace::cli
