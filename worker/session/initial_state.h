#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "millrace/millrace.h"
#include "protocol/datagram/key.h"
#include "protocol/transport/transport.h"
#include "worker/core/rejoin/saved_state.h"
#include "worker/session/attached_weights.h"
#include "worker/session/switch_socket.h"

namespace millrace::worker {

/// Holds the initial state of a session, beside the job's specification.
struct InitialState {
  std::vector<AttachedWeights::Target> targets;  ///< by tensor; without weights where none were given
  bool has_weights = false;                      ///< for every tensor
  std::optional<SavedState> saved;               ///< its weights are in the arrays already
  std::optional<protocol::TransportKeys> keys;   ///< of the connections to the shards; empty: none
  std::unique_ptr<SwitchUdpPort> datagrams;      ///< path switch: the session's socket
  protocol::JobKey switch_key{};                 ///< ... and the job's key
  std::vector<protocol::Endpoint> switch_at;     ///< ... every address of the switch that the specification names
  std::string rack_name;                         ///< ... this worker's rack, empty: it is in none
  std::vector<protocol::Endpoint> rack_at;       ///< ... and every address of it
};

/// Returns the options with every shard's address as "tcp://HOST:PORT".
///
/// Errors  invalid_argument: a text is no address, has no port or port 0, or two shards have one address.
Result<WorkerConfig> with_tcp_addresses(WorkerConfig me);

/// Checks the weights that were given with the tensors, reads the saved state that the options name, and writes its
/// weights into the arrays. Reads the keys. For path switch: reads the job's key, finds the switch by its name, opens
/// the socket.
///
/// Errors  limit_exceeded: the process may open too few files for the number of shards. invalid_argument:
///         check_weights(); returns or initial_weights "first" without weights. io, malformed, unsupported: of the
///         file. job_mismatch, with the first difference: a state of another job or worker, or one whose weights do not
///         match the session's. Keys: one file of the two alone, or an error of its reader. Path switch: no key file,
///         or one that others may read; a switch with an unknown name; returns, which this path does not have.
Result<InitialState> load_initial_state(const WorkerConfig& me, std::span<const TensorOptions> tensors,
                                        const protocol::JobSpec& spec);

/// Checks the tensors' weights and their options.
///
/// Errors  invalid_argument: weights of another size; a scale that check_scale() refuses, without a schedule;
///         kOnArrival in a mode that leaves workers out.
Status check_weights(std::span<const TensorOptions> tensors, protocol::Mode mode);

/// Refuses a scale under which weights would never move, or would not stay finite.
Status check_scale(float scale);

/// kOnArrival writes while a caller may compute, in modes in which updates come without a push.
Status check_apply(ApplyWhen when, protocol::Mode mode);

}  // namespace millrace::worker
