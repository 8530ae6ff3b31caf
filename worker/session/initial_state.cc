#include "worker/session/initial_state.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "monitoring/open_files.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/address/host_port.h"
#include "protocol/datagram/io/job_key_file.h"
#include "protocol/files/atomic_file.h"
#include "protocol/keys/key_files.h"
#include "worker/session/state_file.h"

namespace millrace::worker {
namespace {

Status check_weights_of(const TensorOptions& tensor, protocol::Mode mode) {
  if (!tensor.weights) return {};
  const Weights& weights = *tensor.weights;
  if (weights.array().size() != tensor.dimension) {
    return fail(ErrorCode::kInvalidArgument, "tensor '" + tensor.name + "': " + std::to_string(weights.array().size()) +
                                                 " weights for a dimension of " + std::to_string(tensor.dimension));
  }
  if (!weights.schedule()) {
    if (auto valid = check_scale(weights.scale()); !valid)
      return fail(valid.error().code, "tensor '" + tensor.name + "': " + valid.error().message);
  }
  return check_apply(weights.apply(), mode);
}

AttachedWeights::Target target_of(const Weights& weights) {
  return {weights.array(), weights.scale(), weights.schedule(), weights.apply()};
}

bool is_missing(const std::string& path) { return ::access(path.c_str(), F_OK) != 0 && errno == ENOENT; }

/// The state without its weights, which are in the arrays then.
Result<SavedState> load(const WorkerConfig& me, std::span<const TensorOptions> tensors, const protocol::JobSpec& spec) {
  const auto in_file = [&](const Error& error) { return fail(error.code, "'" + me.load_path + "': " + error.message); };
  auto bytes = read_file(me.load_path);
  if (!bytes) return std::unexpected(bytes.error());
  auto state = decode_saved_state(*bytes);
  if (!state) return in_file(state.error());
  if (state->job_name != spec.name) {
    return in_file({ErrorCode::kJobMismatch,
                    "the saved state is of job '" + state->job_name + "', this is job '" + spec.name + "'"});
  }
  if (auto fit = fits(*state, me.worker, spec); !fit) return in_file(fit.error());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].weights || !state->tensors[i].weights.empty()) continue;
    return in_file({ErrorCode::kJobMismatch, "the saved state has no weights of tensor '" + tensors[i].name +
                                                 "': it was saved by a session without them"});
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].weights || state->tensors[i].weights.empty()) continue;
    return in_file({ErrorCode::kJobMismatch, "the saved state has weights of tensor '" + tensors[i].name +
                                                 "', and this session has no array for them: give connect() the array "
                                                 "(TensorOptions::weights)"});
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Buffer<float> saved = std::exchange(state->tensors[i].weights, {});
    if (tensors[i].weights) std::ranges::copy(saved, tensors[i].weights->array().begin());
  }
  return state;
}

Status read_keys(const WorkerConfig& me, InitialState& initial_state) {
  if (me.key_file.empty() && me.server_key_file.empty()) return {};
  if (me.key_file.empty() || me.server_key_file.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "key_file and server_key_file go together: this worker's secret key, and the shards' public one");
  }
  auto own = protocol::read_secret_key(me.key_file);
  if (!own) return fail(own.error().code, "key_file: " + own.error().message);
  auto server = protocol::read_public_key(me.server_key_file);
  if (!server) return fail(server.error().code, "server_key_file: " + server.error().message);
  initial_state.keys = protocol::TransportKeys{std::move(*own), *server};
  return {};
}

/// A socket of IPv6 takes both families: where any address is one of IPv6, it is opened. IPv4 addresses come first.
const protocol::Endpoint& family_to_open(const InitialState& initial_state) {
  const bool by_rack = !initial_state.rack_at.empty() && !initial_state.rack_at.back().is_ipv4();
  return by_rack ? initial_state.rack_at.back() : initial_state.switch_at.back();
}

Status open_datagrams(const WorkerConfig& me, const protocol::JobSpec& spec, InitialState& initial_state) {
  if (spec.path == protocol::Path::kServer) {
    if (me.switch_key_file.empty()) return {};
    return fail(ErrorCode::kInvalidArgument, "switch_key_file is given and path is server: set path, or leave it out");
  }
  if (me.switch_key_file.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "path switch needs switch_key_file: the job's key, 64 hexadecimal digits, as the switch has it");
  }
  auto key = protocol::read_job_key(me.switch_key_file);
  if (!key) return std::unexpected(key.error());
  auto at = protocol::resolve_endpoints(spec.switch_path.address);
  if (!at) return fail(at.error().code, "path: " + at.error().message);
  if (!me.rack.empty()) {
    auto rack = protocol::resolve_endpoints(me.rack);
    if (!rack) return fail(rack.error().code, "rack: " + rack.error().message);
    if (std::ranges::find_first_of(*rack, *at) != rack->end()) {
      return fail(ErrorCode::kInvalidArgument,
                  "rack: the switch is where the one that decides is too; give the rack's own, or none");
    }
    initial_state.rack_name = me.rack;
    initial_state.rack_at = std::move(*rack);
  }
  initial_state.switch_at = std::move(*at);
  auto port = SwitchUdpPort::open(family_to_open(initial_state), spec.switch_path.packet_bytes_max,
                                  {.job = spec.switch_path.job, .lanes = spec.switch_path.lanes});
  if (!port) return std::unexpected(port.error());
  initial_state.switch_key = *key;
  initial_state.datagrams = std::move(*port);
  return {};
}

/// ZeroMQ may end the process where it has no descriptor for its own bookkeeping: too few are refused before.
Status check_descriptors(size_t shards) {
  constexpr size_t kForEachShard =
      8;  // two sockets while a connection is made again, each with a monitor and their wake-ups
  constexpr size_t kForTheRest = 16;
  const size_t needed = kForEachShard * shards + kForTheRest;
  const uint64_t limit = monitoring::open_file_limit();
  const uint64_t used = monitoring::open_file_count().value_or(0);
  if (used + needed <= limit) return {};
  return fail(ErrorCode::kLimitExceeded, "this process may open " + std::to_string(limit) + " files, " +
                                             std::to_string(used) + " are open, and a session with " +
                                             std::to_string(shards) + " shards takes up to " + std::to_string(needed) +
                                             "; " + monitoring::kRaiseOpenFiles);
}

}  // namespace

Result<WorkerConfig> with_tcp_addresses(WorkerConfig me) {
  auto addresses = protocol::parse_server_addresses(me.shards);
  if (!addresses) return fail(addresses.error().code, "shards: " + addresses.error().message);
  me.shards = std::move(*addresses);
  return me;
}

Status check_apply(ApplyWhen when, protocol::Mode mode) {
  if (when != ApplyWhen::kOnArrival || mode == protocol::Mode::kSynchronous) return {};
  return fail(ErrorCode::kInvalidArgument,
              "weights are applied on arrival in mode synchronous only: in others, updates of steps without this "
              "worker come at any time, also while it computes; attach with kOnAwait");
}

Status check_scale(float scale) {
  if (!std::isfinite(scale)) return fail(ErrorCode::kInvalidArgument, "the scale of the weights is not finite");
  if (scale != 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the scale of the weights is 0, so that no update would move them: give a scale, as -learning_rate, or "
              "connect() a schedule (Weights), which may be 0 in some steps");
}

Status check_weights(std::span<const TensorOptions> tensors, protocol::Mode mode) {
  for (const TensorOptions& tensor : tensors) {
    if (auto valid = check_weights_of(tensor, mode); !valid) return valid;
  }
  return {};
}

Result<InitialState> load_initial_state(const WorkerConfig& me, std::span<const TensorOptions> tensors,
                                        const protocol::JobSpec& spec) {
  if (auto enough = check_descriptors(me.shards.size()); !enough) return std::unexpected(enough.error());
  InitialState initial_state;
  if (auto valid = check_weights(tensors, spec.mode); !valid) return std::unexpected(valid.error());
  for (const TensorOptions& tensor : tensors) {
    AttachedWeights::Target& target = initial_state.targets.emplace_back();
    if (tensor.weights) target = target_of(*tensor.weights);
  }
  initial_state.has_weights =
      std::ranges::all_of(tensors, [](const TensorOptions& tensor) { return tensor.weights.has_value(); });
  if (me.returns && !initial_state.has_weights && !spec.has_store()) {
    return fail(ErrorCode::kInvalidArgument,
                "returns: a rejoining worker takes over the weights of another worker; give every tensor its "
                "weights (TensorOptions::weights), or the job a store");
  }
  if (spec.initial_weights == protocol::InitialWeights::kFirst && !initial_state.has_weights) {
    return fail(ErrorCode::kInvalidArgument,
                "initial_weights = first: give every tensor its weights (TensorOptions::weights), the session is to "
                "hand out the first worker's, or to take them over");
  }
  // Found out here, and not hours later when there is a state to lose.
  if (!me.save_path.empty()) {
    if (Status can = files::try_to_write(me.save_path, files::kOwnerOnly); !can) return std::unexpected(can.error());
  }
  if (auto read = read_keys(me, initial_state); !read) return std::unexpected(read.error());
  if (auto opened = open_datagrams(me, spec, initial_state); !opened) return std::unexpected(opened.error());
  if (me.load_path.empty() || (me.returns && is_missing(me.load_path))) return initial_state;
  auto state = load(me, tensors, spec);
  if (!state) return std::unexpected(state.error());
  initial_state.saved = std::move(*state);
  return initial_state;
}

}  // namespace millrace::worker
