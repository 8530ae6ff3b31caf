#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/result.h"

namespace millrace::training {

/// Returns the least time of a message to a server, in seconds. It is half of the time in which the server's host
/// accepts a TCP connection, the fastest of three. Of all servers, the slowest counts. The connections are closed at
/// once.
///
/// servers    "tcp://host:port", one a shard; a server that accepts none is tried again until `timeout` has passed for
///            all.
/// goes_on    called between two attempts, once a second at least; false: give up.
/// Errors     unavailable: naming the shard, its address, and why it was not reached.
/// Threads    blocks; a name costs the system's resolver besides.
Result<double> latency_to_servers(const std::vector<std::string>& servers, std::chrono::milliseconds timeout,
                                  const std::function<bool()>& goes_on);

}  // namespace millrace::training
