#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "server/connections/connection_judge.h"

/// Counts the bytes that arrive over each accepted connection, below ZeroMQ. ZeroMQ holds the frames of a message back
/// until the last one has come, without a bound, and does not report them. In programs with accept4.cc and recv.cc.
///
/// Strangers  connections of the listener that had no session yet. One holds `each_max` at most. All together hold
///            `total_max` at most, beside kStrangerShare for each. The recv() that passes a limit ends its connection:
///            a look at intervals is too late for a peer that sends a GB a second.
/// Held       an upper bound of ZeroMQ's memory for the unfinished message. It is the sum of kReadBytes for each read
///            into ZeroMQ's shared buffer, kFrameBytes for each frame, and the bytes. The message's end returns it.
/// Whole      messages do not count: ZMQ_RCVHWM of them wait for the loop, and then ZeroMQ stops reading. To end such a
///            connection would help its peer: the messages stay, and the next connection has room for as many.
/// Keys       CURVE hides the ends of messages. So whole messages of a stranger with an allowed key count too, until
///            the loop takes them. A taken message returns what its own frames hold.
/// Handshake  a stranger that chooses its routing identity is ended before ZeroMQ sees it (frame_count.h).
/// Cost       of a connection with a session: some relaxed loads and an addition for each recv().
/// Threads    any: ZeroMQ's thread counts, the loop reads.
namespace millrace::server {

/// Descriptors from this number on are not counted, and never closed.
inline constexpr int kCountedDescriptors = 65'536;

/// ZeroMQ reads into a buffer of this size, except the middle of a large frame.
inline constexpr size_t kSharedReadBytes = 8'192;
/// Memory of one such buffer (libzmq 4.3): its bytes, a record of 40 bytes for each 33 of them, the allocator's head.
/// Frames of over 33 bytes keep the whole buffer.
inline constexpr uint64_t kReadBytes = 18 << 10;
/// A frame's place in the queue of a connection (zmq_msg_t).
inline constexpr uint64_t kFrameBytes = 64;
/// The same of a frame that CURVE has hidden: ZeroMQ copies its text, with the allocator's heads, and frees the buffer.
inline constexpr uint64_t kHiddenFrameBytes = 128;
/// What CURVE adds to a frame: the command's name, a nonce, a MAC, and flags.
inline constexpr uint64_t kHidingBytes = 8 + 8 + 16 + 1;
/// A stranger may always hold this: a handshake and a Hello of some ten kB. The connection itself costs about half.
inline constexpr uint64_t kStrangerShare = 128 << 10;

struct StrangerLimits {
  uint16_t port = 0;  ///< of the listener; 0: no limits
  uint64_t each_max = 0;
  uint64_t total_max = 0;
};
/// Limits the strangers of the listener; in place of earlier limits.
void limit_strangers(const StrangerLimits& limits);
/// Returns the bytes that all strangers hold.
uint64_t strangers_held();

/// Begins a connection. Forgets the counts of earlier connections with the same number.
void count_connection(int descriptor, TimeNs now);
/// Counts received bytes; ignores descriptors that are no accepted connection, and threads that accept none. False:
/// the connection is refused or over a limit, and ends with this read.
///
/// room  the size of the buffer that they were read into.
[[nodiscard]] bool count_received(int descriptor, std::span<const std::byte> bytes, size_t room);
/// Ends the counts of a connection whose other end has ended it.
void count_closed(int descriptor);
/// Counts a message that the owner has taken: the bytes so far are no rest of it.
///
/// frames  the bytes of each, without what CURVE added. Those of a frame that is left out stay counted.
void count_message(int descriptor, std::span<const uint64_t> frames);
/// Notes that a connection has a session. It is no stranger from now on, also when the session has ended.
void admit_connection(int descriptor, TimeNs accepted_at);
/// Returns when the connection with this number began; 0: it is not counted.
TimeNs accepted_at(int descriptor);
/// Returns the bytes that came since the owner took the last message; 0: it is not counted.
uint64_t unread_bytes(int descriptor);
/// Returns all connections, by descriptor. Closed ones stay until their number is used again, or forgotten. The unread
/// bytes of a stranger are at least those that it holds.
std::vector<ConnectionSample> connection_samples();
/// Returns whether the descriptor is a connection to `port` of this machine.
bool is_connection(int descriptor, uint16_t port);
/// Returns whether that connection has ended: its descriptor has another one, is none to `port`, or the other end has
/// closed it. Also while ZeroMQ has not read the end.
bool has_ended(int descriptor, TimeNs begun_at, uint16_t port);
/// Forgets a connection that is closed, unless its number has a new one.
void forget_connection(int descriptor, TimeNs accepted_at);
/// Returns the address of the other end, without its port; empty: there is none.
std::string address_of_connection(int descriptor);

/// Ends the connection to `port` of this machine that began then; ZeroMQ closes it. False: the descriptor is none such
/// (any more).
bool end_connection(int descriptor, TimeNs accepted_at, uint16_t port);

/// A connection that a recv() has ended.
struct Cut {
  using Address = std::array<char, 64>;  ///< numbers of IPv6 and its interface
  int descriptor = -1;
  TimeNs accepted_at = 0;
  std::string_view why;  ///< "bad_handshake", "unfinished_message", "unfinished_messages"; static storage
  Address address = {};  ///< as address_of_connection()
};
struct Cuts {
  std::vector<Cut> known;
  uint64_t others = 0;  ///< more, whose records had no place
};
/// Returns the connections that were ended since the last call.
Cuts take_cuts();

}  // namespace millrace::server
