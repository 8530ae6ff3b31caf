#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "monitoring/command_line/quantity_flags.h"
#include "worker/cli/commands.h"
#include "worker/peer/algorithms/gradient_speeds.h"
#include "worker/peer/algorithms/planner.h"
#include "worker/peer/algorithms/summing_speeds.h"
#include "worker/program/flag_range.h"
#include "worker/program/json_text.h"
#include "worker/program/layer_sizes.h"
#include "worker/program/program.h"
#include "worker/program/progress.h"
#include "worker/program/table.h"
#include "worker/program/units.h"

namespace millrace::cli {

using program::fail_with;
using program::in_range;
using program::rounded_duration_text;

namespace {

constexpr double kBitsOfByte = 8;
constexpr double kLeastRate = 1e3;

struct AdviseFlags {
  uint64_t n = 0;
  std::string layers;
  double density = 0;
  uint32_t ranks = 0;
  uint32_t shards = 1;
  double link_rate = 0;  ///< bits a second
  TimeNs latency = 0;
  std::string select = "topk";
  std::string codec = "raw";
  std::optional<double> add_ns, add_value_ns, select_ns, encode_ns, decode_ns, entry_bytes;
  uint32_t threshold_period = 32;
  uint32_t boundary_period = 64;
  bool exact = false;
  bool json = false;
};

std::string result_name(peer::ResultKind kind) {
  return kind == peer::ResultKind::kExactSum ? "exact_sum" : "global_topk";
}

/// As they were given by hand, else as this machine has them now.
peer::KernelSpeeds kernel_speeds_of(const AdviseFlags& flags) {
  peer::KernelSpeeds speeds;
  if (!flags.add_ns || !flags.add_value_ns) speeds = peer::measure_kernel_speeds(&monotonic_now_ns);
  if (flags.add_ns) speeds.add_entry_s = *flags.add_ns * 1e-9;
  if (flags.add_value_ns) speeds.add_value_s = *flags.add_value_ns * 1e-9;
  return speeds;
}

/// Errors   invalid_argument: no selection of that name, or none that keeps a share and leaves the rest for later.
Result<SelectionId> callers_selection(const std::string& name) {
  const Result<SelectionId> selection = selection_by_name(name);
  if (!selection || *selection == SelectionId::kNone) return selection;
  const SelectionInfo& info = *find_selection(*selection);
  if (info.amount() != SelectionAmount::kShare || info.use == SelectionUse::kUnbiased) {
    return fail(ErrorCode::kInvalidArgument,
                name +
                    " does not select --density of a gradient by size: take topk, trimmed, by_size ..., or "
                    "none where gradients are sparse already");
  }
  return selection;
}

/// Seconds a value, measured; by hand the same for all.
Result<peer::SelectionSpeeds> selection_speeds_of(const AdviseFlags& flags, const peer::SumShape& shape) {
  const Result<SelectionId> callers = callers_selection(flags.select);
  if (!callers) return std::unexpected(callers.error());
  if (*callers == SelectionId::kNone) return peer::SelectionSpeeds{};
  if (flags.select_ns) {
    const double each = *flags.select_ns * 1e-9;
    return peer::SelectionSpeeds{each, each, each, each, each};
  }
  return peer::measure_selections(*callers, shape, &monotonic_now_ns);
}

/// As measured; by hand for contributions and sums alike. Errors  the codec's.
Result<peer::CodingSpeeds> codings_of(const AdviseFlags& flags, const std::optional<CodecSpec>& codec,
                                      const peer::SumShape& shape) {
  peer::CodingSpeeds codings;
  const bool by_hand = flags.encode_ns && flags.decode_ns && flags.entry_bytes;
  if (!by_hand) {
    const auto measured = peer::measure_codings(codec, shape, &monotonic_now_ns);
    if (!measured) return std::unexpected(measured.error());
    codings = *measured;
  }
  for (peer::EntryCoding* const coding : {&codings.contribution, &codings.sums}) {
    if (flags.encode_ns) coding->encode_s = *flags.encode_ns * 1e-9;
    if (flags.decode_ns) coding->decode_s = *flags.decode_ns * 1e-9;
    if (flags.entry_bytes) coding->bytes = *flags.entry_bytes;
  }
  return codings;
}

/// Nothing for "raw": entries travel as pairs. Errors  the text's.
Result<std::optional<CodecSpec>> codec_named(const std::string& name) {
  if (name == "raw") return std::optional<CodecSpec>();
  const Result<CodecSpec> codec = codec_from_text(name);
  if (!codec) return std::unexpected(codec.error());
  if (codec->automatic) {
    return fail(ErrorCode::kInvalidArgument,
                "auto chooses by the gradient at run time (millrace train); name one here, as gap+raw");
  }
  return std::optional<CodecSpec>(*codec);
}

Result<peer::MachineSpeeds> speeds_of(const AdviseFlags& flags, const peer::SumShape& shape,
                                      const peer::KernelSpeeds& kernels) {
  const Result<std::optional<CodecSpec>> codec = codec_named(flags.codec);
  if (!codec) return std::unexpected(codec.error());
  const auto select = selection_speeds_of(flags, shape);
  if (!select) return std::unexpected(select.error());
  const auto codings = codings_of(flags, *codec, shape);
  if (!codings) return std::unexpected(codings.error());
  return peer::MachineSpeeds{.latency_s = static_cast<double>(flags.latency) / kNsPerS,
                             .byte_s = kBitsOfByte / flags.link_rate,
                             .add_entry_s = kernels.add_entry_s,
                             .add_value_s = kernels.add_value_s,
                             .select = *select,
                             .contribution = codings->contribution,
                             .sums = codings->sums};
}

/// Holds the question and its answer.
struct Advice {
  peer::SumShape shape;
  peer::MachineSpeeds speeds;
  std::vector<peer::PlannedCost> ranking;
  std::string reason;
};

nlohmann::json coding_json(const peer::EntryCoding& coding) {
  return {{"entry_bytes", coding.bytes}, {"encode_ns", coding.encode_s * 1e9}, {"decode_ns", coding.decode_s * 1e9}};
}

nlohmann::json advice_json(const AdviseFlags& flags, const Advice& advice) {
  nlohmann::json rows = nlohmann::json::array();
  for (const peer::PlannedCost& one : advice.ranking) {
    rows.push_back({{"algorithm", std::string(one.info.name)},
                    {"result", result_name(one.info.result)},
                    {"dense", one.info.dense_only},
                    {"total_ms", one.total_s() * 1e3},
                    {"select_ms", one.select_s * 1e3},
                    {"encode_ms", one.encode_s * 1e3},
                    {"decode_ms", one.decode_s * 1e3},
                    {"latency_ms", one.latency_s * 1e3},
                    {"transfer_ms", one.transfer_s * 1e3},
                    {"add_ms", one.add_s * 1e3},
                    {"reevaluate_ms", one.reevaluate_s * 1e3}});
  }
  const peer::SumShape& shape = advice.shape;
  const peer::MachineSpeeds& speeds = advice.speeds;
  return {{"n", shape.dimension},
          {"k", shape.k},
          {"ranks", shape.ranks},
          {"shards", flags.shards},
          {"sum_entries", peer::expected_support(shape.dimension, shape.k, shape.ranks)},
          {"reason", advice.reason},
          {"rows", rows},
          {"add_ns", speeds.add_entry_s * 1e9},
          {"add_value_ns", speeds.add_value_s * 1e9},
          {"select",
           {{"name", flags.select},
            {"callers_ns", speeds.select.callers_s * 1e9},
            {"topk_ns", speeds.select.topk_s * 1e9},
            {"gaussian_ns", speeds.select.gaussian_s * 1e9},
            {"reevaluate_ns", speeds.select.reevaluate_s * 1e9},
            {"reuse_ns", speeds.select.reuse_s * 1e9}}},
          {"codec", flags.codec},
          {"contribution", coding_json(speeds.contribution)},
          {"sums", coding_json(speeds.sums)}};
}

void print_advice(const AdviseFlags& flags, const Advice& advice) {
  std::vector<std::vector<std::string>> table = {
      {"algorithm", "result", "time", "selecting", "coding", "messages", "bytes", "adding", "re-evaluating"}};
  for (const peer::PlannedCost& one : advice.ranking) {
    table.push_back({std::string(one.info.name), result_name(one.info.result), rounded_duration_text(one.total_s()),
                     rounded_duration_text(one.select_s), rounded_duration_text(one.encode_s + one.decode_s),
                     rounded_duration_text(one.latency_s), rounded_duration_text(one.transfer_s),
                     rounded_duration_text(one.add_s), rounded_duration_text(one.reevaluate_s)});
  }
  const peer::MachineSpeeds& speeds = advice.speeds;
  fmt::print("{}\n{}\nAdding: {:.2f} ns a sparse entry, {:.2f} ns a dense value.\n", program::aligned_table(table),
             advice.reason, speeds.add_entry_s * 1e9, speeds.add_value_s * 1e9);
  fmt::print(
      "Selecting: {:.2f} ns a value by {}, {:.2f} by topk, {:.2f} by gaussian; oktopk {:.2f} with an earlier "
      "threshold, {:.2f} with a new one.\n",
      speeds.select.callers_s * 1e9, flags.select, speeds.select.topk_s * 1e9, speeds.select.gaussian_s * 1e9,
      speeds.select.reuse_s * 1e9, speeds.select.reevaluate_s * 1e9);
  const auto coding = [](const peer::EntryCoding& one) {
    return fmt::format("{:.2f} bytes, {:.2f} ns to encode and {:.2f} ns to decode", one.bytes, one.encode_s * 1e9,
                       one.decode_s * 1e9);
  };
  fmt::print("Coding by {}, an entry: {}; of sums: {}.\nSpeeds that were not given are measured here.\n", flags.codec,
             coding(speeds.contribution), coding(speeds.sums));
}

peer::SumShape shape_of(const AdviseFlags& flags, uint64_t n) {
  const auto k = static_cast<uint64_t>(std::llround(flags.density * static_cast<double>(n)));
  return {.dimension = n,
          .k = std::max<uint64_t>(1, k),
          .ranks = flags.ranks,
          .threshold_period = flags.threshold_period,
          .boundary_period = flags.boundary_period};
}

Result<Advice> advice_for(const AdviseFlags& flags, uint64_t n, const peer::KernelSpeeds& kernels) {
  Advice advice{.shape = shape_of(flags, n), .speeds = {}, .ranking = {}, .reason = {}};
  const auto speeds = speeds_of(flags, advice.shape, kernels);
  if (!speeds) return std::unexpected(speeds.error());
  advice.speeds = *speeds;
  const auto wanted = flags.exact ? peer::Wanted::kExactSum : peer::Wanted::kAnyResult;
  advice.ranking = peer::rank_with_servers(advice.shape, advice.speeds, wanted, flags.shards);
  advice.reason = peer::reason_of(advice.ranking, advice.shape);
  return advice;
}

/// Layers of one model, in the order of the flag: each summed by itself.
struct LayersAdvice {
  struct Layer {
    peer::SumShape shape;
    peer::DenseAndSparse best;
  };
  std::vector<Layer> layers;
  double dense_s = 0;   ///< of all layers, sent dense
  double sparse_s = 0;  ///< sent sparse
  double chosen_s = 0;  ///< each as it is faster
};

Result<LayersAdvice> layers_advice(const AdviseFlags& flags, const std::vector<uint64_t>& sizes) {
  const peer::KernelSpeeds kernels = kernel_speeds_of(flags);
  std::map<uint64_t, LayersAdvice::Layer> by_size;  // layers of one size are measured once
  LayersAdvice all;
  for (const uint64_t n : sizes) {
    auto at = by_size.find(n);
    if (at == by_size.end()) {
      const auto advice = advice_for(flags, n, kernels);
      if (!advice) return std::unexpected(advice.error());
      at =
          by_size.emplace(n, LayersAdvice::Layer{advice->shape, peer::dense_and_sparse(advice->ranking).value()}).first;
    }
    const LayersAdvice::Layer& layer = all.layers.emplace_back(at->second);
    all.dense_s += layer.best.dense.total_s();
    all.sparse_s += layer.best.sparse.total_s();
    all.chosen_s += std::min(layer.best.dense.total_s(), layer.best.sparse.total_s());
  }
  return all;
}

const char* form_name(const LayersAdvice::Layer& layer) { return layer.best.dense_wins() ? "dense" : "sparse"; }

nlohmann::json layers_json(const AdviseFlags& flags, const LayersAdvice& all) {
  nlohmann::json rows = nlohmann::json::array();
  for (const LayersAdvice::Layer& layer : all.layers) {
    rows.push_back({{"n", layer.shape.dimension},
                    {"k", layer.shape.k},
                    {"dense", std::string(layer.best.dense.info.name)},
                    {"dense_ms", layer.best.dense.total_s() * 1e3},
                    {"sparse", std::string(layer.best.sparse.info.name)},
                    {"sparse_ms", layer.best.sparse.total_s() * 1e3},
                    {"faster", form_name(layer)}});
  }
  return {{"ranks", flags.ranks},           {"shards", flags.shards},
          {"density", flags.density},       {"select", flags.select},
          {"codec", flags.codec},           {"layers", rows},
          {"dense_ms", all.dense_s * 1e3},  {"sparse_ms", all.sparse_s * 1e3},
          {"chosen_ms", all.chosen_s * 1e3}};
}

void print_layers(const LayersAdvice& all) {
  std::vector<std::vector<std::string>> table = {{"values", "entries", "dense", "time", "sparse", "time", "faster"}};
  for (const LayersAdvice::Layer& layer : all.layers) {
    const auto& [dense, sparse] = layer.best;
    table.push_back({program::grouped(layer.shape.dimension), program::grouped(layer.shape.k),
                     std::string(dense.info.name), rounded_duration_text(dense.total_s()),
                     std::string(sparse.info.name), rounded_duration_text(sparse.total_s()), form_name(layer)});
  }
  const auto dense = std::ranges::count_if(all.layers, [](const auto& layer) { return layer.best.dense_wins(); });
  fmt::print(
      "{}\nAll dense {}, all sparse {}; each as it is faster {}: {} of {} layers dense.\nA layer that is faster dense "
      "takes select none (TensorOptions::select, for that tensor alone). Speeds that were not given are measured "
      "here.\n",
      program::aligned_table(table), rounded_duration_text(all.dense_s), rounded_duration_text(all.sparse_s),
      rounded_duration_text(all.chosen_s), dense, all.layers.size());
}

program::Outcome advise_layers(const AdviseFlags& flags) {
  const auto sizes = program::layer_sizes(flags.layers);
  if (!sizes) return fail_with(sizes.error());
  const auto all = layers_advice(flags, *sizes);
  if (!all) return fail_with(all.error());
  if (flags.json) {
    fmt::print("{}\n", program::json_text(layers_json(flags, *all)));
  } else {
    print_layers(*all);
  }
  return {};
}

program::Outcome run_advise(const AdviseFlags& flags) {
  if ((flags.n != 0) == !flags.layers.empty()) {
    return fail_with(program::ExitCode::kUsage, "give --dimension, or --layers for the layers of a model");
  }
  if (!flags.layers.empty()) return advise_layers(flags);
  const auto advice = advice_for(flags, flags.n, kernel_speeds_of(flags));
  if (!advice) return fail_with(advice.error());
  if (flags.json) {
    fmt::print("{}\n", program::json_text(advice_json(flags, *advice)));
  } else {
    print_advice(flags, *advice);
  }
  return {};
}

/// Adds a flag of a time that may be a fraction of a nanosecond.
void add_fraction(CLI::App& app, const std::string& flag, std::optional<double>& ns, const std::string& description) {
  const auto set = [flag, &ns](const std::string& text) {
    constexpr double kMost = 1e6;
    const double time = monitoring::value_or_refuse(flag, nanoseconds_from_text(text));
    const auto text_of = [](double limit) { return duration_text(static_cast<TimeNs>(limit)); };
    monitoring::refuse_failed(flag, check_limits(text, time, 0.0, kMost, text_of));
    ns = time;
  };
  app.add_option_function<std::string>(flag, set, description + "; default: measured here")->type_name("DURATION");
}

void add_speed_flags(CLI::App& app, AdviseFlags& flags) {
  app.option_defaults()->group("Compression");
  app.add_option("--select", flags.select,
                 "what selects --density of a dense gradient before an exact sum (topk, trimmed, radix, by_size ...); "
                 "none: gradients are sparse already, and nothing selects")
      ->capture_default_str()
      ->check(program::checked(callers_selection));
  app.add_option("--codec", flags.codec,
                 "of what ranks contribute, INDEX+VALUE; sums have its index codec, losslessly (raw: none)")
      ->capture_default_str()
      ->check(program::checked(codec_named));
  app.option_defaults()->group("Speeds");
  add_fraction(app, "--select-time", flags.select_ns, "for each value that any selection looks at");
  app.add_option("--entry-bytes", flags.entry_bytes, "of a coded entry; default: measured on drawn entries")
      ->check(in_range(0.0, 1e6));
  add_fraction(app, "--encode-time", flags.encode_ns, "for each entry that is encoded");
  add_fraction(app, "--decode-time", flags.decode_ns, "for each entry that is decoded");
  add_fraction(app, "--add-time", flags.add_ns, "for each sparse entry that is added");
  add_fraction(app, "--add-value-time", flags.add_value_ns, "for each dense value that is added");
}

}  // namespace

program::Command add_advise_command(CLI::App& root) {
  auto flags = std::make_shared<AdviseFlags>();
  CLI::App* app = program::add_command(
      root, "advise", "which allreduce among peers is the fastest here, or servers, and whether dense wins");
  app->option_defaults()->group("Data");
  app->add_option("--dimension", flags->n, "entries of the gradient")
      ->check(in_range(uint64_t{1}, program::kLayerValuesMax));
  app->add_option(
         "--layers", flags->layers,
         "instead of --dimension, a model: the values of each layer with commas between (4096,2359296), or @FILE "
         "with such numbers. For each, and for all, whether it should travel dense or sparse")
      ->check(program::not_empty());
  app->add_option("--density", flags->density, "entries of a rank over the dimension")
      ->required()
      ->check(in_range(1e-12, 1.0));
  app->option_defaults()->group("Cluster");
  app->add_option("--ranks", flags->ranks, "that sum their gradients")->required()->check(in_range(1u, 1u << 20));
  monitoring::add_rate(*app, "--link-rate", flags->link_rate, "of a rank's link", kLeastRate)->required();
  monitoring::add_duration(*app, "--latency", monitoring::in_ns(flags->latency), "of a message")
      ->default_str("")
      ->required();
  app->add_option("--shards", flags->shards, "of the rows servers and servers_topk, each on a host of its own")
      ->capture_default_str()
      ->check(in_range(1u, 4'096u));
  app->option_defaults()->group("Collectives");
  app->add_option("--threshold-period", flags->threshold_period,
                  "oktopk: steps between exact thresholds (Ok-Topk's tau')")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 20));
  app->add_option("--boundary-period", flags->boundary_period,
                  "oktopk: steps between two searches for the ranks' regions (Ok-Topk's tau)")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 20));
  app->add_flag("--exact", flags->exact, "exact sums only, no top-k of them");
  add_speed_flags(*app, *flags);
  app->option_defaults()->group("Output");
  app->add_flag("--json", flags->json, "one JSON object as the last line");
  app->footer(
      "Times are those of the papers' models: selecting, encoding and decoding, latency of messages, bytes over the "
      "rate,\n"
      "entries that are added, and oktopk's periodic searches, divided by their period. Entries lie uniformly; where "
      "ranks'\n"
      "entries overlap more, sparse sums are smaller and faster. Speeds of this machine are measured; an option that "
      "gives one\n"
      "wins: for another machine, or for the same table twice.\n\n"
      "Examples:\n"
      "  millrace advise --dimension 16777216 --density 0.01 --ranks 16 --link-rate 1gbit --latency 30us\n"
      "  millrace advise --dimension 16777216 --density 0.001 --ranks 16 --link-rate 1gbit --latency 30us --select "
      "trimmed \\\n"
      "    --codec gap+qsgd4 --shards 2\n"
      "  millrace advise --layers 1728,36864,2359296,102760448 --density 0.001 --ranks 16 --link-rate 1gbit --latency "
      "30us");
  return {app, [flags] { return run_advise(*flags); }};
}

}  // namespace millrace::cli
