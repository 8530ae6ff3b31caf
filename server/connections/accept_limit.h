#pragma once

#include <cstdint>

namespace millrace::server {

/// Makes accept4() close at once each connection whose descriptor is `below` or higher; in programs with accept4.cc.
/// ZeroMQ accepts as long as there are descriptors, and takes a whole core when there are none. Then the listener stays
/// readable, and ZeroMQ tries again at once.
///
/// Threads  any.
void set_accept_limit(uint64_t below);
uint64_t accept_limit();

/// Counts a connection that accept4() gave its caller, and how many it gave since the process began.
void count_accepted();
uint64_t accepted_connections();

/// Counts a connection that was closed at once, and how many were since the last call.
void count_over_accept_limit();
uint64_t take_over_accept_limit();

}  // namespace millrace::server
