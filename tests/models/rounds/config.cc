#include "tests/models/rounds/config.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <variant>

namespace millrace::model {

namespace {

using Target = std::variant<bool*, int*, uint8_t*, uint64_t*>;

struct Option {
  std::string_view name;
  Target target;
  std::string_view meaning;
};

std::vector<Option> options_of(Config& config) {
  Spent& most = config.at_most;
  return {
      {"quorum", &config.quorum, "contributions that decide a step (1)"},
      {"staleness", &config.staleness,
       "steps that a worker may be ahead; asynchronous: contributions in flight, less one (0)"},
      {"reselect", &config.reselect, "an update may carry nothing"},
      {"everyone", &config.everyone, "a step waits for every member that takes part in it"},
      {"asynchronous", &config.asynchronous, "each contribution is a step of its own"},
      {"merged", &config.merged, "with --asynchronous: several updates may come as one, which no worker can get again"},
      {"store", &config.store, "shards hold the weights, and save them"},
      {"store-alone", &config.store_alone,
       "with --store: a successor has its weights from the save, and retained updates"},
      {"acks", &config.acks, "members that have an update before any application does (0: not held)"},
      {"one-process", &config.one_process, "the shards of all parts live and die together"},
      {"keep-open", &config.keep_open, "a new view keeps open contributions of members under the same incarnation"},
      {"positions", &config.positions,
       "logs are compared by length and last epoch, as the protocol does, not by content"},
      {"progress", &config.progress, "looks for states from which the job cannot be completed"},
      {"worker-crashes", &most.worker_crashes, "crashes of workers, at most"},
      {"shard-crashes", &most.shard_crashes, "crashes of shards"},
      {"removals", &most.removals, "live workers removed"},
      {"joiner-removals", &most.joiner_removals, "joiners removed while they join"},
      {"replacements", &most.replacements, "live shards replaced, which do not know it"},
      {"epoch-raises", &most.epoch_raises, "epochs raised for other reasons"},
      {"saves", &most.saves, "saves of workers"},
      {"forgotten", &most.forgotten, "updates forgotten by the memory bound"},
      {"store-saves", &most.store_saves, "saves of stores"},
      {"states-max", &config.states_max, "gives up there"},
      {"walks", &config.walks, "random walks instead of the search"},
      {"walk-steps", &config.walk_steps, "of each (250)"},
      {"seed", &config.seed, "of the walks (1)"},
  };
}

constexpr std::array<std::string_view, 4> kVerdicts{"clean", "violation", "stuck", "unfinished"};

bool read_number(std::string_view text, const Target& target) {
  return std::visit(
      [&](auto* value) {
        using Value = std::remove_reference_t<decltype(*value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          return false;
        } else {
          const auto read = std::from_chars(text.data(), text.data() + text.size(), *value);
          return read.ec == std::errc{} && read.ptr == text.data() + text.size();
        }
      },
      target);
}

/// Reads the word at `at`, and its value behind it; moves `at` to the next word.
bool read_option(Config& config, const std::vector<std::string>& words, size_t& at) {
  const std::string name = words[at].substr(std::min<size_t>(2, words[at].size()));
  const bool more = at + 1 < words.size();
  if (name == "no-trace" || name == "no-forget") {
    (name == "no-trace" ? config.trace : config.forget) = false;
    return ++at > 0;
  }
  if (name == "without" && more) {
    const auto rule = rule_named(words[at + 1]);
    if (rule) config.rules.switch_off(*rule);
    at += 2;
    return rule.has_value();
  }
  if (name == "expect" && more) {
    const auto* found = std::ranges::find(kVerdicts, words[at + 1]);
    if (found == kVerdicts.end()) return false;
    config.expected = static_cast<Verdict>(found - kVerdicts.begin());
    at += 2;
    return true;
  }
  for (const Option& option : options_of(config)) {
    if (option.name != name || !words[at].starts_with("--")) continue;
    if (const auto* flag = std::get_if<bool*>(&option.target)) {
      **flag = true;
      return ++at > 0;
    }
    at += 2;
    return more && read_number(words[at - 1], option.target);
  }
  return false;
}

}  // namespace

std::expected<Config, std::string> read_options(const std::vector<std::string>& arguments) {
  Config config;
  for (size_t at = 0; at < arguments.size();) {
    const std::string& word = arguments[at];
    if (!read_option(config, arguments, at))
      return std::unexpected("cannot read '" + word + "'; --help has all options");
  }
  return config;
}

std::string summary_of(const Config& config) {
  std::string line = fmt::format("workers {} steps {} parts {} lives {}", kWorkers, kSteps, kParts, kLives);
  Config copy = config;
  for (const Option& option : options_of(copy)) {
    const bool is_fault_or_mode =
        option.name != "states-max" && !option.name.starts_with("walk") && option.name != "seed";
    const auto value = std::visit([](auto* number) { return static_cast<uint64_t>(*number); }, option.target);
    if (is_fault_or_mode && value != 0) line += fmt::format(", {} {}", option.name, value);
  }
  if (!config.forget) line += ", no-forget";
  for (size_t rule = 0; rule < static_cast<size_t>(Rule::kCount); ++rule)
    if (!config.rules[static_cast<Rule>(rule)])
      line += fmt::format(", without {}", text_of(static_cast<Rule>(rule)).name);
  return line;
}

std::string help() {
  std::string text =
      "The model of the rounds: looks at every state that a small cluster can reach (README.md).\n\n"
      "  --without RULE             switches a rule off (repeatable)\n"
      "  --expect VERDICT           clean (default), violation, stuck or unfinished: anything else exits 1\n"
      "  --no-trace                 does not print the trace of a finding\n"
      "  --no-forget                nothing is acknowledged, nothing forgotten: fewer states\n";
  Config config;
  for (const Option& option : options_of(config)) {
    const bool flag = std::holds_alternative<bool*>(option.target);
    text += fmt::format("  {:<26} {}\n", fmt::format("--{}{}", option.name, flag ? "" : " N"), option.meaning);
  }
  text += "\nRules, and where protocol/ROUNDS.md has them:\n";
  for (size_t rule = 0; rule < static_cast<size_t>(Rule::kCount); ++rule) {
    const RuleText& one = text_of(static_cast<Rule>(rule));
    text += fmt::format("  {:<20} {:<10} {}\n", one.name, one.where, one.sentence);
  }
  return text;
}

}  // namespace millrace::model
