#pragma once

#include <string>

#include "worker/peer/group/peer_group.h"
#include "worker/program/outcome.h"
#include "worker/training/exchange/training_options.h"

namespace millrace::training {

/// Combines the statuses of all ranks; the same result on all. Success where all ranks succeeded, else the error of the
/// lowest rank that failed. Its number is in front where others have another error or none. Returns when all ranks have
/// called it.
///
/// Errors   beside these the group's, where it has ended (PeerGroup::failure()).
Status agree(peer::PeerGroup& group, std::string what, const Status& own);

/// Ends the group, on all ranks, with this rank's error, so that no rank is blocked on it. Returns the error.
std::unexpected<Error> end_group(peer::PeerGroup& group, Error error);

/// Returns the place of the cause of an error of a rank that works in the group. While the group runs, it is the rank
/// itself. It is the servers where the gradients go over servers and a rank ended the group by end_group(). Else it is
/// the ranks.
program::ErrorPlace place_of(const peer::PeerGroup& group, ExchangePath path);

}  // namespace millrace::training
