#include "worker/config/job_options.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/words.h"
#include "protocol/job/job_spec_reproducible.h"

namespace millrace::worker {
namespace {

std::unexpected<Error> bad(std::string_view text, const std::string& wanted) {
  return fail(ErrorCode::kInvalidArgument, "'" + std::string(text) + "' is not " + wanted);
}

template <typename T>
Status choose(std::string_view option, std::string_view text,
              std::initializer_list<std::pair<std::string_view, T>> words, T& out) {
  std::string known;
  for (const auto& [word, value] : words) {
    if (word == text) {
      out = value;
      return {};
    }
    known += (known.empty() ? "'" : ", '") + std::string(word) + "'";
  }
  return fail(ErrorCode::kInvalidArgument, std::string(option) + " = '" + std::string(text) + "': known are " + known);
}

/// The same error with the option named in front.
template <typename T>
Result<T> of_option(const std::string& option, Result<T>&& result) {
  if (result) return std::move(result);
  return fail(result.error().code, option + ": " + result.error().message);
}

/// Parses an optional override of a tensor.
template <typename T, typename Parse>
Status set_override(const std::string& option, const std::string& text, std::optional<T>& out, Parse parse) {
  if (text.empty()) return {};
  auto parsed = of_option<T>(option, parse(text));
  if (!parsed) return std::unexpected(parsed.error());
  out = std::move(*parsed);
  return {};
}

Result<protocol::TensorSpec> tensor_from_options(const TensorOptions& options, uint32_t threshold_period) {
  protocol::TensorSpec tensor;
  tensor.name = options.name;
  tensor.dimension = options.dimension;
  tensor.priority = options.priority;
  const std::string who = "tensor '" + options.name + "': ";
  const auto reselect = [&](std::string_view text) { return reselect_from_text(text, threshold_period); };
  for (const Status& done :
       {set_override(who + "select", options.select, tensor.select, selection_from_text),
        set_override(who + "reselect", options.reselect, tensor.reselect, reselect),
        set_override(who + "codec_up", options.codec_up, tensor.codec_up, codec_from_text),
        set_override(who + "codec_down", options.codec_down, tensor.codec_down, codec_from_text)}) {
    if (!done) return std::unexpected(done.error());
  }
  return tensor;
}

/// Removes quantization from the tensor's settings: alternating signs and lossy codecs.
void keep_values(const protocol::JobSpec& spec, protocol::TensorSpec& tensor) {
  SelectionSpec select = tensor.select.value_or(spec.select);
  select.alternate_signs = false;
  tensor.select = select;
  tensor.codec_up = without_loss(tensor.codec_up.value_or(spec.codec_up));
  tensor.codec_down = without_loss(tensor.codec_down.value_or(spec.codec_down));
}

Status set_path(const JobOptions& job, protocol::JobSpec& spec) {
  protocol::SwitchSpec& at = spec.switch_path;
  if (const auto addresses = switch_addresses(job.path)) {
    spec.path = protocol::Path::kSwitch;
    at.address = addresses->decider;
  } else if (job.path != "server") {
    return fail(ErrorCode::kInvalidArgument,
                "path = '" + job.path +
                    "': known are 'server', 'switch:HOST:PORT', as switch:192.0.2.7:7600, and for a worker in a rack "
                    "'switch:HOST:PORT,rack:HOST:PORT'");
  }
  at.job = job.switch_job;
  at.slots = job.switch_slots;
  at.lanes = job.switch_lanes;
  at.packet_bytes_max = job.switch_packet_bytes;
  at.return_after_ms = job.switch_return_after_ms;
  // Integers of a reproducible job have the bits of an f32's, and a switch sends all of them.
  const bool exact = job.reproducible && spec.path == protocol::Path::kSwitch;
  const std::string_view chosen = exact ? "gap+fixed32" : "gap+fixed16";
  const std::vector<std::string_view> codecs = split(job.switch_codec == "auto" ? chosen : job.switch_codec, '+');
  if (codecs.size() != 2) return bad(job.switch_codec, "a switch_codec: 'auto' or INDEX+VALUE, as gap+fixed16");
  using Index = protocol::WindowIndexCodec;
  using Value = protocol::WindowValueCodec;
  if (auto done = choose<Index>(
          "switch_codec", codecs[0],
          {{"raw", Index::kRaw}, {"gap", Index::kGap}, {"bitmap", Index::kBitmap}, {"bloom", Index::kBloom}}, at.index);
      !done) {
    return done;
  }
  return choose<Value>(
      "switch_codec", codecs[1],
      {{"fixed16", Value::kFixed16}, {"fixed32", Value::kFixed32}, {"qsgd8", Value::kQsgd8}, {"qsgd4", Value::kQsgd4}},
      at.value);
}

Status set_words(const JobOptions& job, protocol::JobSpec& spec) {
  auto select = of_option("select", selection_from_text(job.select));
  if (!select) return std::unexpected(select.error());
  auto reselect = of_option("reselect", reselect_from_text(job.reselect, job.threshold_period));
  if (!reselect) return std::unexpected(reselect.error());
  auto up = of_option("codec_up", codec_from_text(job.codec_up));
  if (!up) return std::unexpected(up.error());
  auto down = of_option("codec_down", codec_from_text(job.codec_down));
  if (!down) return std::unexpected(down.error());
  auto momentum = of_option("momentum", momentum_from_text(job.momentum));
  if (!momentum) return std::unexpected(momentum.error());
  spec.momentum = *momentum;
  auto optimizer = of_option("store", optimizer_from_text(job.store));
  if (!optimizer) return std::unexpected(optimizer.error());
  spec.store.optimizer = *optimizer;
  spec.select = *select;
  spec.reselect = *reselect;
  spec.codec_up = *up;
  spec.codec_down = *down;
  using protocol::CodecError;
  using protocol::Combine;
  using protocol::InitialWeights;
  using protocol::Mode;
  using protocol::NonFinite;
  using protocol::StoreBegin;
  for (const Status& done :
       {choose<Mode>("mode", job.mode,
                     {{"synchronous", Mode::kSynchronous},
                      {"bounded_staleness", Mode::kBoundedStaleness},
                      {"asynchronous", Mode::kAsynchronous},
                      {"partial", Mode::kPartial}},
                     spec.mode),
        choose<Combine>("combine", job.combine,
                        {{"sum", Combine::kSum}, {"mean", Combine::kMean}, {"weighted_mean", Combine::kWeightedMean}},
                        spec.combine),
        choose<CodecError>("codec_error", job.codec_error,
                           {{"retain", CodecError::kRetain}, {"drop", CodecError::kDrop}}, spec.codec_error),
        choose<NonFinite>("non_finite", job.non_finite,
                          {{"refuse", NonFinite::kRefuse}, {"drop", NonFinite::kDropAndCount}}, spec.non_finite),
        choose<InitialWeights>("initial_weights", job.initial_weights,
                               {{"own", InitialWeights::kOwn}, {"first", InitialWeights::kFirst}},
                               spec.initial_weights),
        choose<StoreBegin>(
            "store_begin", job.store_begin,
            {{"zeros", StoreBegin::kZeros}, {"worker", StoreBegin::kWorker}, {"saved", StoreBegin::kSaved}},
            spec.store.begin)}) {
    if (!done) return done;
  }
  return {};
}

}  // namespace

Result<protocol::ReselectSpec> reselect_from_text(std::string_view text, uint32_t threshold_period) {
  protocol::ReselectSpec spec;
  if (text == "none") return spec;
  const std::vector<std::string_view> words = split(text, ':');
  if (words.size() != 2 || words[0] != "topk") return bad(text, "a re-selection: 'none' or 'topk:DENSITY|COUNT'");
  spec.reselect = protocol::Reselect::kTopK;
  spec.threshold_period = threshold_period;
  if (auto done = set_amount(words[1], spec.density, spec.k); !done) return std::unexpected(done.error());
  return spec;
}

Result<protocol::MomentumSpec> momentum_from_text(std::string_view text) {
  protocol::MomentumSpec spec;
  if (text == "none") return spec;
  const std::vector<std::string_view> words = split(text, ':');
  const auto wanted = [&] {
    return bad(text, "a momentum: 'none', or correction, nesterov or nesterov_printed with ':FACTOR[:unmasked]'");
  };
  if (words.size() < 2 || words.size() > 3 || (words.size() == 3 && words[2] != "unmasked")) return wanted();
  using protocol::Momentum;
  for (const Momentum one : {Momentum::kCorrection, Momentum::kNesterov, Momentum::kNesterovPrinted}) {
    if (protocol::momentum_name(one) == words[0]) spec.momentum = one;
  }
  if (spec.momentum == Momentum::kNone) return wanted();
  const auto factor = number_from_text<double>(words[1]);
  if (!factor || !(*factor > 0) || !(*factor < 1)) return bad(words[1], "a momentum factor between 0 and 1");
  spec.factor = *factor;
  spec.masked = words.size() == 2;
  return spec;
}

Result<protocol::GridSpec> grid_from_text(std::string_view text, const protocol::GridSpec& chosen) {
  if (text == "auto") return chosen;
  protocol::GridSpec spec;
  const std::vector<std::string_view> words = split(text, ':');
  const auto block = words.empty() ? std::nullopt : number_from_text<uint32_t>(words[0]);
  const auto exponent = words.size() == 2 ? number_from_text<int32_t>(words[1]) : std::nullopt;
  if (!block || !exponent) return bad(text, "a grid: 'auto' or BLOCK_INDICES:FIRST_EXPONENT, as 16384:-20");
  spec.block_indices = *block;
  spec.exponent_initial = *exponent;
  return spec;
}

std::optional<SwitchAddresses> switch_addresses(std::string_view path) {
  constexpr std::string_view kSwitch = "switch:";
  constexpr std::string_view kRack = "rack:";
  if (!path.starts_with(kSwitch)) return std::nullopt;
  const std::vector<std::string_view> parts = split(path.substr(kSwitch.size()), ',');
  if (parts.empty()) return SwitchAddresses{};
  if (parts.size() == 1) return SwitchAddresses{.decider = parts[0], .rack = {}};
  if (parts.size() > 2 || !parts[1].starts_with(kRack) || parts[1].size() == kRack.size()) return std::nullopt;
  return SwitchAddresses{.decider = parts[0], .rack = parts[1].substr(kRack.size())};
}

Result<protocol::JobSpec> spec_from_options(const JobOptions& job, std::span<const TensorOptions> tensors) {
  if (!(job.link_rate >= 0) || !std::isfinite(job.link_rate)) {
    return fail(ErrorCode::kInvalidArgument, "link_rate: bits per second, 0 or more");
  }
  protocol::JobSpec spec;
  spec.name = job.name;
  spec.workers = job.workers;
  spec.workers_min = job.workers_min;
  spec.staleness = job.staleness;
  spec.quorum = job.quorum;
  spec.deadline_ms = job.deadline_ms;
  spec.participants = job.participants;
  spec.apply_after_acks = job.apply_after_acks;
  spec.dead_after_ms = job.dead_after_ms;
  spec.heartbeat_ms = job.heartbeat_ms;
  spec.exchange_timeout_ms = job.exchange_timeout_ms;
  spec.seed = job.seed;
  spec.parts_per_shard = job.parts_per_shard;
  spec.fuse_below = job.fuse_below;
  spec.audit = job.audit;
  spec.history = job.history;
  spec.unbiased = job.unbiased;
  spec.reproducible = job.reproducible;
  spec.clip = job.clip;
  spec.recipe = job.recipe;
  if (auto done = set_words(job, spec); !done) return std::unexpected(done.error());
  if (auto done = set_path(job, spec); !done) return std::unexpected(done.error());
  const protocol::GridSpec chosen = job.reproducible ? protocol::kReproducibleGrid : protocol::GridSpec{};
  auto grid = of_option("grid", grid_from_text(job.grid, chosen));
  if (!grid) return std::unexpected(grid.error());
  spec.grid = *grid;
  for (const TensorOptions& options : tensors) {
    auto tensor = tensor_from_options(options, job.threshold_period);
    if (!tensor) return std::unexpected(tensor.error());
    if (options.output_layer) keep_values(spec, *tensor);
    spec.tensors.push_back(std::move(*tensor));
  }
  if (job.worker >= job.workers) {
    return fail(ErrorCode::kInvalidArgument, "worker " + std::to_string(job.worker) + " of " +
                                                 std::to_string(job.workers) +
                                                 " workers: identities are 0 .. workers - 1");
  }
  if (job.reproducible && spec.path == protocol::Path::kServer && (job.returns || !job.load_path.empty())) {
    return fail(
        ErrorCode::kUnsupported,
        std::string(job.returns ? "returns" : "load_path") +
            " in a reproducible job: the exponents of its grid are in no saved state and no snapshot; start the "
            "job again, from the weights of the last run");
  }
  if (job.shards.empty()) return fail(ErrorCode::kInvalidArgument, "no shards: give at least one \"tcp://host:port\"");
  if (auto valid = protocol::validate(spec); !valid) return std::unexpected(valid.error());
  return spec;
}

}  // namespace millrace::worker
