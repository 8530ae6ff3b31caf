#include "worker/config/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <type_traits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/registry.h"
#include "kernels/base/units.h"
#include "kernels/base/words.h"
#include "protocol/address/host_port.h"
#include "protocol/job/enum_words.h"
#include "protocol/job/job_spec_fields.h"
#include "worker/config/option_text.h"
#include "worker/config/selection_text.h"
#include "worker/config/worker_fields.h"

namespace millrace::worker {
namespace {

using protocol::OptionGroup;
using protocol::OptionInfo;
using protocol::OptionQuantity;
using std::chrono::milliseconds;

std::string dashed(std::string_view name) {
  std::string flag(name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::unexpected<Error> bad_value(std::string_view text, std::string_view wanted) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("'{}': {}", text, wanted));
}

// One overload a type of plain values: its form, its text, and the reverse.

std::string form_of(bool) { return "on|off"; }
std::string form_of(double) { return "NUMBER"; }
std::string form_of(milliseconds) { return "DURATION"; }
std::string form_of(const std::string&) { return "TEXT"; }
std::string form_of(const std::vector<std::string>&) { return "LIST"; }
template <typename T>
  requires std::is_integral_v<T>
std::string form_of(T) {
  return "NUMBER";
}
template <protocol::HasEnumWords E>
std::string form_of(E) {
  return fmt::format("{}", fmt::join(protocol::enum_texts<E>(), "|"));
}

std::string form_of_quantity(OptionQuantity quantity, std::string form) {
  switch (quantity) {
    case OptionQuantity::kPlain: break;
    case OptionQuantity::kRate: return "RATE";
    case OptionQuantity::kFile: return "FILE";
    case OptionQuantity::kAddress: return "HOST:PORT";
  }
  return form;
}

std::string plain_text(bool value) { return value ? "on" : "off"; }
std::string plain_text(double value) { return fmt::format("{}", value); }
std::string plain_text(milliseconds value) { return duration_text(value.count() * kNsPerMs); }
std::string plain_text(const std::string& value) { return value; }
std::string plain_text(const std::vector<std::string>& value) { return fmt::format("{}", fmt::join(value, ",")); }
template <typename T>
  requires std::is_integral_v<T>
std::string plain_text(T value) {
  return fmt::format("{}", value);
}
template <protocol::HasEnumWords E>
std::string plain_text(E value) {
  return std::string(protocol::enum_word(value));
}

Status set_plain(const OptionInfo&, std::string_view text, bool& value) {
  if (text != "on" && text != "off" && text != "true" && text != "false") {
    return bad_value(text, "known are 'on', 'off'");
  }
  value = text == "on" || text == "true";
  return {};
}
Status set_plain(const OptionInfo& info, std::string_view text, double& value) {
  if (info.quantity == OptionQuantity::kRate) {
    const auto rate = rate_from_text(text);
    if (!rate) return std::unexpected(rate.error());
    if (auto fits = check_option_limits(info, text, *rate); !fits) return fits;
    value = *rate;
    return {};
  }
  const auto number = number_from_text<double>(text);
  if (!number) return bad_value(text, "it takes a number");
  if (auto fits = check_option_limits(info, text, *number); !fits) return fits;
  value = *number;
  return {};
}
Status set_plain(const OptionInfo& info, std::string_view text, milliseconds& value) {
  const auto duration = duration_from_text(text);
  if (!duration) return std::unexpected(duration.error());
  if (*duration % kNsPerMs != 0) return bad_value(text, "it takes whole milliseconds");
  const TimeNs whole = *duration / kNsPerMs;
  if (auto fits = check_option_limits(info, text, milliseconds(whole)); !fits) return fits;
  value = milliseconds(whole);
  return {};
}
Status set_plain(const OptionInfo& info, std::string_view text, std::string& value) {
  if (static_cast<double>(text.size()) < info.least) return bad_value(text, "it is empty");
  if (info.quantity == OptionQuantity::kAddress && !text.empty()) {  // empty: there is none
    if (const auto address = protocol::parse_host_port(text); !address) return std::unexpected(address.error());
  }
  value = text;
  return {};
}
Status set_plain(const OptionInfo&, std::string_view text, std::vector<std::string>& value) {
  value.clear();
  if (text.empty()) return {};
  for (const std::string_view word : split(text, ',')) value.emplace_back(word);
  return {};
}
template <typename T>
  requires std::is_integral_v<T>
Status set_plain(const OptionInfo& info, std::string_view text, T& value) {
  const auto number = number_from_text<T>(text);
  if (!number) return bad_value(text, "it takes a whole number");
  if (auto fits = check_option_limits(info, text, static_cast<double>(*number)); !fits) return fits;
  value = *number;
  return {};
}
template <protocol::HasEnumWords E>
Status set_plain(const OptionInfo&, std::string_view text, E& value) {
  for (const protocol::EnumWord<E>& known : protocol::kEnumWords<E>) {
    if (known.word != text) continue;
    value = known.value;
    return {};
  }
  return bad_value(text, fmt::format("known are {}{}", form_of(value), did_you_mean(text, protocol::enum_texts<E>())));
}

/// The same error, with the option named in front.
Status of_option(const std::string& name, Status done) {
  if (done) return done;
  return fail(done.error().code, fmt::format("{}: {}", name, done.error().message));
}

/// The pair of functions of a type that has a text of its own.
template <typename T>
struct TextPair {
  Result<T> (*from)(std::string_view);
  std::string (*to)(const T&);
};
constexpr TextPair<SelectionSpec> pair_of(const SelectionSpec*) { return {selection_from_text, selection_text}; }
constexpr TextPair<CodecSpec> pair_of(const CodecSpec*) { return {codec_from_text, codec_text}; }
constexpr TextPair<OptimizerSpec> pair_of(const OptimizerSpec*) { return {optimizer_from_text, optimizer_text}; }
constexpr TextPair<protocol::MomentumSpec> pair_of(const protocol::MomentumSpec*) {
  return {momentum_from_text, momentum_text};
}
constexpr TextPair<protocol::GridSpec> pair_of(const protocol::GridSpec*) { return {grid_from_text, grid_text}; }
constexpr TextPair<protocol::SwitchCodecs> pair_of(const protocol::SwitchCodecs*) {
  return {switch_codecs_from_text, switch_codecs_text};
}

/// The forms of a text, where its kernels list them.
std::string forms_of(const SelectionSpec&) {
  return selection_names() + "; then :signs, :dense=STEPS or :warm_up=STEPS where they apply";
}
std::string forms_of(const CodecSpec&) {
  return "auto[+VALUE], or INDEX+VALUE of " + index_codec_names() + " and " + value_codec_names();
}
std::string forms_of(const OptimizerSpec&) { return listed_texts(optimizers(), std::mem_fn(&OptimizerInfo::form)); }
template <typename T>
std::string forms_of(const T&) {
  return {};
}

/// Makes the list of options.
class Tabler {
 public:
  /// draft  nullptr: not of a job.
  explicit Tabler(JobDraft* draft) : draft_(draft) {}

  template <typename T>
  void option(const OptionInfo& info, T& value) {
    const bool is_rate = info.quantity == OptionQuantity::kRate;
    Option& made = add(info, form_of_quantity(info.quantity, form_of(value)));
    made.is_switch = std::is_same_v<T, bool>;
    made.text = [&value] { return plain_text(value); };
    if constexpr (std::is_same_v<T, double>) {
      if (is_rate) made.text = [&value] { return rate_text(value); };
    }
    made.assign = [&value](const OptionInfo& limits, std::string_view text) { return set_plain(limits, text, value); };
  }
  void words(const OptionInfo& info, std::string& value) { option(info, value); }
  template <typename T, typename Visit>
  void text(const OptionInfo& info, T& value, Visit) {
    static constexpr TextPair<T> kPair = pair_of(static_cast<const T*>(nullptr));
    bool* chosen = automatic_of(value);
    Option& made = add(info, "TEXT");
    made.forms = forms_of(value);
    made.text = [chosen, &value] { return chosen != nullptr && *chosen ? "auto" : kPair.to(value); };
    made.assign = [chosen, &value](const OptionInfo&, std::string_view text) -> Status {
      if (chosen != nullptr) *chosen = text == "auto";
      if (chosen != nullptr && *chosen) return {};
      auto parsed = kPair.from(text);
      if (parsed) value = *parsed;
      return parsed ? Status{} : std::unexpected(parsed.error());
    };
  }
  template <typename Visit>
  void text(const OptionInfo& info, protocol::ReselectSpec& value, Visit) {
    Option& made = add(info, "TEXT");
    made.text = [&value] { return reselect_text(value); };
    made.assign = [draft = draft_, &value](const OptionInfo&, std::string_view text) -> Status {
      const auto parsed = reselect_from_text(text);
      if (!parsed) return std::unexpected(parsed.error());
      value = parsed->spec;
      draft->period_chosen = parsed->period_chosen;
      return {};
    };
  }
  template <typename T, typename Visit>
  void group(std::string_view name, T& part, Visit visit) {
    prefix_ = fmt::format("{}_", name);
    visit(*this, part);
    prefix_.clear();
  }
  std::vector<Option> take() { return std::move(options_); }

 private:
  Option& add(const OptionInfo& info, std::string form) {
    std::string name = fmt::format("{}{}", prefix_, info.name);
    std::string flag = info.flag.empty() ? dashed(name) : std::string(info.flag);
    return options_.emplace_back(
        Option{.name = std::move(name), .flag = std::move(flag), .info = info, .form = std::move(form)});
  }
  /// Returns the mark of a value that may be "auto"; nullptr: it may not.
  bool* automatic_of(const protocol::GridSpec&) { return &draft_->grid_chosen; }
  bool* automatic_of(const protocol::SwitchCodecs&) { return &draft_->switch_codec_chosen; }
  template <typename T>
  bool* automatic_of(const T&) {
    return nullptr;
  }

  JobDraft* draft_;
  std::string prefix_;
  std::vector<Option> options_;
};

/// A list item in lines of at most 112 columns.
std::string wrapped_item(std::string_view text) {
  constexpr size_t kColumns = 112;
  std::string lines = "-";
  size_t column = lines.size();
  for (const std::string_view word : split(text, ' ')) {
    const bool fits = column + 1 + word.size() <= kColumns;
    lines += fits ? " " : "\n  ";
    column = (fits ? column + 1 : 2) + word.size();
    lines += word;
  }
  return lines + "\n";
}

std::string item_of(const Option& option) {
  const std::string text = option.text();
  std::string value = text.empty() ? "empty" : fmt::format("`{}`", text);
  if (option.flag != dashed(option.name)) value += fmt::format("; flag `--{}`", option.flag);
  return wrapped_item(fmt::format("`{}` ({}; {}): {}.", option.name, option.form, value, option.info.help));
}

std::string page_of(std::span<const Option> options, std::string_view title) {
  std::string page = fmt::format("## {}\n", title);
  for (const OptionGroup group :
       {OptionGroup::kJob, OptionGroup::kConsistency, OptionGroup::kCompression, OptionGroup::kStore,
        OptionGroup::kSwitch, OptionGroup::kTiming, OptionGroup::kWorker}) {
    std::string items;
    for (const Option& option : options) items += option.info.group == group ? item_of(option) : "";
    if (!items.empty()) page += fmt::format("\n### {}\n\n{}", heading_of(group), items);
  }
  return page;
}

}  // namespace

Status Option::set(std::string_view words) const { return of_option(name, assign(info, words)); }

std::vector<Option> options_of(JobDraft& draft) {
  Tabler tabler(&draft);
  protocol::fields::visit_job(tabler, draft.spec);
  return tabler.take();
}

std::vector<Option> options_of(WorkerConfig& worker) {
  Tabler tabler(nullptr);
  visit_worker(tabler, worker);
  return tabler.take();
}

void check_option_names(std::span<const Option> options, std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    MILLRACE_CHECK(std::ranges::find(options, name, &Option::name) != options.end(), name);
  }
}

void keep_options(std::vector<Option>& options, std::span<const std::string_view> names) {
  check_option_names(options, names);
  std::erase_if(options,
                [names](const Option& option) { return std::ranges::find(names, option.name) == names.end(); });
}

Option& option_named(std::vector<Option>& options, std::string_view name) {
  const auto at = std::ranges::find(options, name, &Option::name);
  MILLRACE_CHECK(at != options.end(), name);
  return *at;
}

Status set_option(JobConfig& job, std::string_view name, std::string_view text) {
  JobDraft draft = draft_of(job);
  std::vector<Option> options = options_of(draft);
  const auto at = std::ranges::find(options, name, &Option::name);
  if (at == options.end()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("there is no option '{}'{}", name,
                            did_you_mean(name, texts_of(options, std::mem_fn(&Option::name)))));
  }
  if (Status set = at->set(text); !set) return set;
  auto changed = config_of(draft);
  if (!changed) return std::unexpected(changed.error());
  job = std::move(*changed);
  return {};
}

std::string_view heading_of(OptionGroup group) {
  switch (group) {
    case OptionGroup::kJob: return "Job";
    case OptionGroup::kCompression: return "Compression";
    case OptionGroup::kConsistency: return "Consistency";
    case OptionGroup::kStore: return "Store";
    case OptionGroup::kSwitch: return "Switch";
    case OptionGroup::kTiming: return "Timing";
    case OptionGroup::kWorker: return "Worker";
  }
  return "Other";
}

std::string options_markdown() {
  JobDraft draft = draft_of(JobConfig{});
  WorkerConfig worker;
  constexpr std::string_view kHead =
      "# Options\n\n"
      "Each option with its kind and its default. Sentences use these names. A command has flags for some of them: "
      "its\n"
      "`--help` lists them, with the defaults that differ there, as `--select none` of `millrace train`. A flag, and a "
      "key of\n"
      "a configuration file, is the name with dashes, or the flag that stands beside the name. `millrace train "
      "--help`\n"
      "has the words of selections, codecs and stores.\n"
      "`worker_options_test` compares this page with the code, and writes it with `MILLRACE_WRITE_OPTIONS=1`.\n\n";
  return fmt::format("{}{}\n{}", kHead, page_of(options_of(draft), "Of a job: equal at all workers"),
                     page_of(options_of(worker), "Of a worker"));
}

}  // namespace millrace::worker
