#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "server/connections/connection_judge.h"

/// Counts the bytes that arrive over each accepted connection, below ZeroMQ. ZeroMQ holds the frames of a message back
/// until the last one has come, without a bound, and does not report them. In programs with accept4.cc and recv.cc.
///
/// Threads  any: ZeroMQ's thread counts, the loop reads.
namespace millrace::server {

/// Descriptors from this number on are not counted, and never closed.
inline constexpr int kCountedDescriptors = 65'536;

/// Begins a connection. Forgets the counts of earlier connections with the same number.
void count_connection(int descriptor, TimeNs now);
/// Counts received bytes; ignores descriptors that are no accepted connection.
void count_received(int descriptor, size_t bytes);
/// Counts a message that the owner has taken: the bytes so far are no rest of it.
void count_message(int descriptor);
/// Returns when the connection with this number began; 0: it is not counted.
TimeNs accepted_at(int descriptor);
/// Returns all connections, by descriptor. Closed ones stay until their number is used again, or forgotten.
std::vector<ConnectionSample> connection_samples();
/// Returns whether the descriptor is a connection to `port` of this machine.
bool is_connection(int descriptor, uint16_t port);
/// Forgets a connection that is closed, unless its number has a new one.
void forget_connection(int descriptor, TimeNs accepted_at);
/// Returns the address of the other end, without its port; empty: there is none.
std::string address_of_connection(int descriptor);

/// Ends the connection to `port` of this machine that began then; ZeroMQ closes it. False: the descriptor is none such
/// (any more).
bool end_connection(int descriptor, TimeNs accepted_at, uint16_t port);

}  // namespace millrace::server
