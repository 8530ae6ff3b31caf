#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "monitoring/http/path_probe.h"
#include "monitoring/status/shard_status.h"
#include "worker/timeline/clock_alignment.h"

namespace millrace::doctor {

/// Holds the answer of the membership table.
struct TableFacts {
  struct Shard {
    uint32_t number = 0;
    std::string state = {};    ///< "ready", "draining", "gone", "never started"
    std::string address = {};  ///< for workers; empty: it never started
    std::string http = {};     ///< empty: not known, or not for this host
    std::string http_trouble = {};
  };
  std::string location = {};
  std::string trouble = {};  ///< why it cannot be read; empty: it was read
  TimeNs read_time = 0;
  std::vector<Shard> shards = {};
};

/// Holds a lookup of a host's name.
struct NameFacts {
  std::string host;
  Result<std::vector<std::string>> addresses;  ///< as numbers
};

/// Holds the kernel's figures of the path of one TCP connection.
struct ConnectFacts {
  std::optional<TimeNs> round_trip = {};  ///< of the TCP handshake; nothing: the kernel has not measured it
};

/// Lists the outcomes of a datagram to a closed port: a host that receives it refuses the port.
enum class DatagramOutcome : uint8_t {
  kArrived = 0,   ///< the host refused its port
  kTooLarge = 1,  ///< an interface or router of the path has a smaller MTU
  kSilent = 2,    ///< no answer: lost, or a firewall drops it or the answer
};

/// Holds the outcomes of two datagrams that no router may cut: one of a byte, and one of 1,500 bytes with its heads.
struct MtuFacts {
  DatagramOutcome small = DatagramOutcome::kSilent;
  DatagramOutcome large = DatagramOutcome::kSilent;
  uint32_t known_mtu = 0;    ///< of the path, as the kernel knows it afterwards; 0: it does not say
  uint32_t head_bytes = 28;  ///< of IP and UDP: 48 of IPv6
};

/// Lists the ways in which a port for workers begins a connection (protocol/wire/transport.md).
enum class PortMechanism : uint8_t {
  kOther = 0,  ///< another program's
  kNull = 1,   ///< without keys
  kCurve = 2,  ///< with keys
};

/// Holds the port's mechanism, and the outcome of a handshake of keys where both sides have them.
struct HandshakeFacts {
  PortMechanism mechanism = PortMechanism::kOther;
  bool done = false;
  std::string trouble = {};  ///< why it was not done; empty: it was, or was not tried
};

using monitoring::TransferFacts;

/// Names one shard to check.
struct ShardPlace {
  std::string subject;                  ///< "shard 1", or the address where its number is not known
  std::optional<uint32_t> number = {};  ///< by the table, or by the shard's own status
  std::string state = {};               ///< by the table; empty: no table was given
  std::string address = {};             ///< for workers, "host:port"; empty: not known
  std::string http = {};                ///< empty: not known
  std::string http_trouble = {};        ///< why not; empty: there is no reason
  bool http_is_guessed = false;         ///< by the address for workers: another process may have it
};

/// Holds all facts of one shard. Empty: not tried, since an earlier step failed or the address is not known.
struct ShardFacts {
  ShardPlace place;
  std::vector<NameFacts> names = {};
  std::optional<Result<ConnectFacts>> connect = {};
  std::optional<MtuFacts> mtu = {};
  std::optional<HandshakeFacts> handshake = {};
  /// Errors  unavailable: no answer, or busy. malformed: another program's answer. unsupported: a process of another
  ///         kind, or no token was given. unauthenticated: another token.
  std::optional<Result<StatusReport>> status = {};
  timeline::ClockAlignment wall_clock = {};  ///< of the shard's process against this host's
  std::string clock_trouble = {};            ///< why it is not known
  std::optional<TransferFacts> transfer = {};
};

/// Holds the path from one shard to another, as the receiver measured it: it connects to the sender, which sends.
struct PairFacts {
  uint32_t receiver = 0;
  uint32_t sender = 0;
  std::string trouble = {};          ///< why it was not measured; empty: it was
  std::string connect_trouble = {};  ///< why the sender's port for workers took no connection; empty: it did
  std::optional<TimeNs> round_trip = {};
  TransferFacts transfer = {};
};

/// Holds the paths between all shards.
struct PairsFacts {
  std::vector<PairFacts> pairs = {};
  uint64_t left_out = 0;  ///< paths that no shard was asked for
};

}  // namespace millrace::doctor
