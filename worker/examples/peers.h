#pragma once

#include <millrace/peer.h>

/// Trains one rank's share of the model, on every rank at the same time.
void train(millrace::peers::Communicator communicator);
