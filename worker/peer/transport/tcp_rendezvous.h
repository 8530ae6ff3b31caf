#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "kernels/base/result.h"
#include "protocol/address/host_lookup.h"
#include "protocol/address/stream_sockets.h"
#include "protocol/keys/key.h"
#include "worker/peer/transport/tcp_link.h"

namespace millrace::peer {

/// Ranks of a group: each keeps a connection to every other one.
inline constexpr size_t kTcpRanksMax = 4096;

/// Listens for the other ranks of a group, before their addresses are known.
class TcpListener {
 public:
  /// address  "HOST:PORT" or "tcp://HOST:PORT": listens on the addresses of that host alone. Port 0: any free port.
  /// Errors   invalid_argument: no address. conflict: in use. io: the host is unknown, or is not this machine.
  static Result<TcpListener> open(const std::string& address,
                                  const protocol::HostResolver& resolver = protocol::look_up_host);

  /// Returns "HOST:PORT" with the host that was given, and the port.
  const std::string& address() const { return address_; }
  const std::vector<Descriptor>& sockets() const { return listeners_.sockets; }

 private:
  protocol::StreamListeners listeners_;
  std::string address_;
};

/// Says how the ranks of a group meet.
struct TcpMeeting {
  uint32_t rank = 0;
  /// Where each rank listens, [ranks], "HOST:PORT" or "tcp://HOST:PORT": the same list on all ranks.
  std::vector<std::string> addresses;
  /// Name of the group. Ranks of another group, or with another list of addresses, are refused.
  std::string group = "peers";
  /// Secret that all ranks of the group have, and no other process. Empty: ranks neither authenticate each other nor
  /// encrypt.
  std::optional<protocol::SecretKey> key = {};
  TimeNs time_max = 60 * kNsPerS;
  /// Time of monotonic_now_ns() from which time_max counts; empty: the call of meet_ranks().
  std::optional<TimeNs> began = {};
  /// Asked about every 100 ms: true ends the meeting. Empty: nothing ends it before its time.
  std::function<bool()> give_up = {};
  protocol::HostResolver resolver = protocol::look_up_host;
};

/// Connects this rank to every other one: it connects to those below it, and accepts those above it.
///
/// Strangers  a connection that does not begin with the hello of an awaited rank of this group is closed. That is a
///            wrong magic, group, or rank, or 10 s without a whole hello. The meeting continues.
///            At most 64 connections without a hello are kept beside the awaited ranks; the oldest that has not proved
///            the key is closed first.
///            Without a key a stranger that knows the group's name and addresses can take a rank's place.
/// Key        each side proves that it has the key before its hello or welcome (tcp_opening.h). A rank of the group can
///            take another number that is free: all ranks trust each other.
/// Restarts   a rank that connects a second time is welcome where its first connection has ended. A rank whose
///            connection ends before all are there is missing again. A rank that has reported to rank 0 does not meet
///            a second rank 0: others may have met.
/// Names      are looked up on threads of their own, so that a slow resolver delays neither time_max nor other ranks.
/// Retries    a rank that does not accept yet is tried again, every 10 to 250 ms, on every address of its host.
/// End        rank 0 ends the meeting of all ranks once each has reported that it is connected to every other one.
/// Returns    [ranks] links, whose sockets have TCP_NODELAY. This rank's own is null.
/// Errors     invalid_argument: rank, addresses, their number, an address of every host (0.0.0.0).
///            timeout: names a rank that is missing, and why.
///            job_mismatch: a rank of another group, list of addresses, or number answered. version_mismatch.
///            unauthenticated: one of both ranks has no key, or another one.
///            unavailable: give_up, or a rank is gone since it reported, or rank 0 is since this rank did.
///            io, limit_exceeded: no descriptor or memory.
/// Threads    one for each listener.
Result<std::vector<std::unique_ptr<TcpLink>>> meet_ranks(TcpListener listener, const TcpMeeting& meeting);

/// Returns the number that identifies the group in hellos. Errors  as those of meet_ranks() about addresses.
Result<uint64_t> tcp_group_of(const TcpMeeting& meeting);

}  // namespace millrace::peer
