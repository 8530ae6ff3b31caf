#include "worker/config/option_text.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "kernels/base/words.h"
#include "kernels/select/select.h"
#include "protocol/job/enum_words.h"

namespace millrace::worker {
namespace {

std::unexpected<Error> not_a(std::string_view text, std::string_view wanted, const std::string& hint = {}) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is not {}{}", text, wanted, hint));
}

template <typename E>
bool assign_word(std::string_view text, E& value) {
  for (const protocol::EnumWord<E>& known : protocol::kEnumWords<E>) {
    if (known.word != text) continue;
    value = known.value;
    return true;
  }
  return false;
}

std::string hint_for_momentum(const std::vector<std::string_view>& words) {
  const std::string hint = did_you_mean(words[0], protocol::enum_texts<protocol::Momentum>());
  return hint.empty() && words.size() == 3 ? did_you_mean(words[2], {"unmasked"}) : hint;
}

/// The words of `switch_codec`. Windows have more codecs, "dense" and "none", which no job asks for.
template <typename E>
std::vector<std::string> words_of_switch_codec() {
  std::vector<std::string> words = protocol::enum_texts<E>();
  std::erase_if(words, [](const std::string& word) { return word == "dense" || word == "none"; });
  return words;
}

template <typename E>
bool assign_switch_codec(std::string_view text, E& value) {
  return text != "dense" && text != "none" && assign_word(text, value);
}

std::string hint_for_switch_codecs(const std::vector<std::string_view>& words) {
  const std::string hint = did_you_mean(words[0], words_of_switch_codec<protocol::WindowIndexCodec>());
  return hint.empty() && words.size() == 2 ? did_you_mean(words[1], words_of_switch_codec<protocol::WindowValueCodec>())
                                           : hint;
}

}  // namespace

Result<protocol::MomentumSpec> momentum_from_text(std::string_view text) {
  protocol::MomentumSpec spec;
  if (text == "none") return spec;
  const std::vector<std::string_view> words = split(text, ':');
  const bool complete = words.size() == 2 || (words.size() == 3 && words[2] == "unmasked");
  if (!complete || !assign_word(words[0], spec.momentum) || spec.momentum == protocol::Momentum::kNone) {
    return not_a(text, "a momentum: 'none', or correction, nesterov or nesterov_printed with ':FACTOR[:unmasked]'",
                 hint_for_momentum(words));
  }
  const auto factor = number_from_text<double>(words[1]);
  if (!factor || !(*factor > 0) || !(*factor < 1)) return not_a(words[1], "a momentum factor between 0 and 1");
  spec.factor = *factor;
  spec.masked = words.size() == 2;
  return spec;
}

std::string momentum_text(const protocol::MomentumSpec& spec) {
  if (spec.momentum == protocol::Momentum::kNone) return "none";
  return fmt::format("{}:{}{}", protocol::enum_word(spec.momentum), spec.factor, spec.masked ? "" : ":unmasked");
}

Result<ReselectText> reselect_from_text(std::string_view text) {
  protocol::ReselectSpec spec;
  if (text == "none") return ReselectText{};
  const std::vector<std::string_view> words = split(text, ':');
  const auto wanted = [&] {
    return not_a(text, "a re-selection: 'none' or 'topk:DENSITY|COUNT[:PERIOD]'",
                 did_you_mean(words[0], protocol::enum_texts<protocol::Reselect>()));
  };
  if (words.size() < 2 || words.size() > 3 || words[0] != "topk") return wanted();
  spec.reselect = protocol::Reselect::kTopK;
  if (auto done = set_amount(words[1], spec.density, spec.k); !done) return std::unexpected(done.error());
  if (words.size() == 3 && (!assign_number(words[2], spec.threshold_period) || spec.threshold_period == 0)) {
    return wanted();
  }
  if (spec.threshold_period > protocol::kThresholdPeriodMax) {
    return not_a(words[2], fmt::format("a period of 1 to {} steps", protocol::kThresholdPeriodMax));
  }
  return ReselectText{.spec = spec, .period_chosen = words.size() == 2};
}

std::string reselect_text(const protocol::ReselectSpec& spec) {
  if (spec.reselect == protocol::Reselect::kNone) return "none";
  const std::string amount = spec.k == 1   ? "count=1"  // "1" is a density
                             : spec.k != 0 ? fmt::format("{}", spec.k)
                                           : fmt::format("{}", spec.density);
  const std::string period = spec.threshold_period == 1 ? "" : fmt::format(":{}", spec.threshold_period);
  return fmt::format("topk:{}{}", amount, period);
}

Result<protocol::GridSpec> grid_from_text(std::string_view text) {
  protocol::GridSpec spec;
  const std::vector<std::string_view> words = split(text, ':');
  if (words.size() != 2 || !assign_number(words[0], spec.block_indices) ||
      !assign_number(words[1], spec.exponent_initial)) {
    return not_a(text, "a grid: 'auto' or BLOCK_INDICES:FIRST_EXPONENT, as 16384:-20");
  }
  return spec;
}

std::string grid_text(const protocol::GridSpec& spec) {
  return fmt::format("{}:{}", spec.block_indices, spec.exponent_initial);
}

Result<protocol::SwitchCodecs> switch_codecs_from_text(std::string_view text) {
  protocol::SwitchCodecs codecs;
  const std::vector<std::string_view> words = split(text, '+');
  if (words.size() != 2 || !assign_switch_codec(words[0], codecs.index) ||
      !assign_switch_codec(words[1], codecs.value)) {
    return not_a(text,
                 "a switch_codec: 'auto' or INDEX+VALUE, as gap+fixed16, with INDEX raw, gap, bitmap or bloom, VALUE "
                 "fixed16, fixed32, qsgd8 or qsgd4",
                 hint_for_switch_codecs(words));
  }
  return codecs;
}

std::string switch_codecs_text(const protocol::SwitchCodecs& codecs) {
  return fmt::format("{}+{}", protocol::enum_word(codecs.index), protocol::enum_word(codecs.value));
}

Status check_option_limits(const protocol::OptionInfo& info, std::string_view text, double value) {
  if (info.quantity == protocol::OptionQuantity::kRate) {
    return check_limits(text, value, info.least, info.most, rate_text);
  }
  return check_limits(text, value, info.least, info.most, [](double limit) { return fmt::format("{}", limit); });
}

Status check_option_limits(const protocol::OptionInfo& info, std::string_view text, std::chrono::milliseconds value) {
  const auto text_of = [](double limit_ms) { return duration_text(static_cast<TimeNs>(limit_ms) * kNsPerMs); };
  return check_limits(text, static_cast<double>(value.count()), info.least, info.most, text_of);
}

}  // namespace millrace::worker
