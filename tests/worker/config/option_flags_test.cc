#include "worker/program/option_flags.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "monitoring/command_line/config_flag.h"
#include "tests/worker/config/other_texts.h"

/// Every option as a flag and as a key of a file.
namespace millrace::worker {
namespace {

using testing::kOtherTexts;

std::vector<std::string> option_names_of(const std::vector<Option>& options) {
  std::vector<std::string> names;
  for (const Option& option : options) names.push_back(option.name);
  return names;
}

/// A command with the flags of every option.
struct EveryFlag {
  EveryFlag() {
    monitoring::add_config_flag(app);
    job.add_to(app);
    add_option_flags(app, me, {}, job.given);
  }
  EveryFlag(const EveryFlag&) = delete;
  EveryFlag& operator=(const EveryFlag&) = delete;

  static std::vector<std::string_view> names() {
    static JobDraft draft;
    static const std::vector<std::string> all = option_names_of(options_of(draft));
    return {all.begin(), all.end()};
  }
  Option& option(const std::string& name) {
    for (std::vector<Option>* table : {&job.options, &me}) {
      for (Option& one : *table) {
        if (one.name == name) return one;
      }
    }
    throw std::out_of_range(name);
  }

  CLI::App app{"a command"};
  WorkerConfig worker;
  JobFlags job{JobConfig{}, names()};
  std::vector<Option> me = options_of(worker);
};

/// Parses `words` and returns the sentence of the refusal; empty: taken.
std::string flags_refusal(EveryFlag& command, const std::vector<std::string>& words) {
  try {
    command.app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return {};
}

std::string flags_file(const std::string& text) {
  std::string path = ::testing::TempDir() + "/option_flags_test.toml";
  std::ofstream(path) << text;
  return path;
}

TEST(OptionFlags, EveryOptionIsSetByItsFlagAndByItsKeyInAFile) {
  for (const auto& [name, text] : kOtherTexts) {
    SCOPED_TRACE(name);
    EveryFlag by_flag;
    const Option& option = by_flag.option(name);
    const std::string flag = "--" + option.flag + (option.is_switch ? "" : "=" + text);
    EXPECT_EQ(flags_refusal(by_flag, {flag}), "");
    EXPECT_EQ(option.text(), text);
    EXPECT_EQ(by_flag.job.given, (GivenTexts{{name, option.is_switch ? "true" : text}}));

    EveryFlag by_file;
    const std::string value = option.is_switch ? "true" : option.form == "NUMBER" ? text : '"' + text + '"';
    const std::string file = flags_file("[part]\n" + option.flag + " = " + value + "\n");
    EXPECT_EQ(flags_refusal(by_file, {"--config", file}), "");
    EXPECT_EQ(by_file.option(name).text(), text);
    EXPECT_EQ(by_file.job.given, (GivenTexts{{name, option.is_switch ? "true" : text}}));
  }
}

TEST(OptionFlags, HelpHasEveryOptionWithItsDefaultInItsGroup) {
  EveryFlag command;
  for (const auto& [name, text] : kOtherTexts) {
    SCOPED_TRACE(name);
    const Option& option = command.option(name);
    const CLI::Option* flag = command.app.get_option("--" + option.flag);
    EXPECT_EQ(flag->get_group(), heading_of(option.info.group));
    EXPECT_TRUE(flag->get_description().starts_with(option.info.help)) << flag->get_description();
    if (option.is_switch) continue;
    EXPECT_EQ(flag->get_default_str(), option.text());
  }
}

TEST(OptionFlags, TheCommandLineWinsOverAFile) {
  EveryFlag command;
  const std::string file = flags_file("workers = 5\nmode = \"asynchronous\"\n");
  EXPECT_EQ(flags_refusal(command, {"--mode", "partial", "--config", file}), "");
  EXPECT_EQ(command.option("mode").text(), "partial");
  EXPECT_EQ(command.option("workers").text(), "5");
}

TEST(OptionFlags, AnInvalidFlagOrFileLineIsRefusedWithTheNearestName) {
  const std::pair<const char*, const char*> files[] = {
      {"wrokers = 5", "--config: 'wrokers' is no flag of this command; did you mean 'workers'?"},
      {"mode = \"asynchronos\"",
       "--mode: 'asynchronos': known are synchronous|bounded_staleness|partial|asynchronous; did you mean "
       "'asynchronous'?"},
      {"audit = 5", "--config: audit is true or false"},
  };
  for (const auto& [line, sentence] : files) {
    EveryFlag command;
    EXPECT_EQ(flags_refusal(command, {"--config", flags_file(line)}), sentence);
  }
  EveryFlag command;
  EXPECT_EQ(flags_refusal(command, {"--seed=-1"}), "--seed: '-1': it takes a whole number");
}

TEST(OptionFlags, ASwitchTakesAWordOrNone) {
  const std::pair<const char*, const char*> taken[] = {{"--history", "on"},
                                                       {"--history=on", "on"},
                                                       {"--history=true", "on"},
                                                       {"--history=off", "off"},
                                                       {"--history=false", "off"}};
  for (const auto& [word, text] : taken) {
    EveryFlag command;
    EXPECT_EQ(flags_refusal(command, {word}), "") << word;
    EXPECT_EQ(command.option("history").text(), text) << word;
  }
  for (const std::string wrong : {"maybe", "x", "2", "99999999999999999999999999"}) {
    EveryFlag command;
    EXPECT_EQ(flags_refusal(command, {"--history=" + wrong}), "--history: '" + wrong + "': known are 'on', 'off'");
  }
}

TEST(OptionFlags, AnOutOfRangeValueIsRefusedWithTheFlagAndTheValue) {
  const std::pair<const char*, const char*> wrong[] = {
      {"--workers=0", "--workers: '0': it takes 1 to 4096"},
      {"--link-rate=-1gbit",
       "--link-rate: '-1gbit' is not a rate: give a number with bit, kbit, mbit or gbit a second, as 2.5gbit, up to "
       "10000000gbit"},
      {"--link-rate=2000000gbit", "--link-rate: '2000000gbit': it takes 0bit to 1000000gbit"},
      {"--clip=2e30", "--clip: '2e30': it takes 0 to 1e+30"},
      {"--clip=-1", "--clip: '-1': it takes 0 to 1e+30"},
      {"--dead-after=25h", "--dead-after: '25h': it takes 0s to 24h"},
      {"--shard-silence=25h", "--shard-silence: '25h': it takes 0s to 24h"},
      {"--resend-after=0ms", "--resend-after: '0ms': it takes 1ms to 24h"},
      {"--reconnect-after-max=0ms", "--reconnect-after-max: '0ms': it takes 1ms to 24h"},
      {"--exchange-timeout=2m", "--exchange-timeout: '2m': it takes 1ms to 1m"},
      {"--job=", "--job: '': it is empty"},
      {"--switch-key=", "--switch-key: '': it is empty"},
      {"--reselect=topk:0.1:1048577", "--reselect: '1048577' is not a period of 1 to 1048576 steps"},
  };
  for (const auto& [word, sentence] : wrong) {
    EveryFlag command;
    const std::string text = word;
    const size_t at = text.find('=');
    EXPECT_EQ(flags_refusal(command, {text.substr(0, at), text.substr(at + 1)}), sentence);
  }
}

TEST(OptionFlags, ACommandNarrowsLimits) {
  CLI::App app;
  constexpr std::string_view kNames[] = {"deadline"};
  JobFlags job{JobConfig{}, kNames};
  job.limit("deadline", 1, 60'000);
  job.add_to(app);
  EXPECT_THROW(app.parse("--deadline 0ms"), CLI::ValidationError);
  EXPECT_THROW(app.parse("--deadline 2m"), CLI::ValidationError);
  app.parse("--deadline 1m");
  EXPECT_EQ(job.draft.spec.deadline, std::chrono::minutes(1));
}

TEST(OptionFlagsDeathTest, ANameThatIsNoOptionsEndsTheProcess) {
  constexpr std::string_view kNames[] = {"deadline", "dedline"};
  EXPECT_DEATH((JobFlags{JobConfig{}, kNames}), "dedline");
  CLI::App app;
  WorkerConfig worker;
  std::vector<Option> me = options_of(worker);
  GivenTexts given;
  EXPECT_DEATH(add_option_flags(app, me, kNames, given), "deadline");
}

}  // namespace
}  // namespace millrace::worker
