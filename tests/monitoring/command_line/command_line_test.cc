#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "monitoring/command_line/completion.h"
#include "monitoring/command_line/config_flag.h"
#include "monitoring/command_line/quantity_flags.h"

namespace millrace::monitoring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Parses a command line. Returns the refusal; empty: there is none.
std::string parse_words(CLI::App& app, std::vector<std::string> words) {
  std::ranges::reverse(words);  // the parser takes them from the end
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return {};
}

struct Quantities {
  uint32_t drain_ms = 10'000;
  uint32_t save_seconds = 0;
  double stalled_s = 5;
  double bits_per_s = 0;
  uint64_t memory = uint64_t{4} << 30;
  uint32_t packet = 1'472;
  CLI::App app;
  Quantities() {
    add_duration(app, "--drain", in_ms(drain_ms), "", {.least = kNsPerMs, .most = 60 * kNsPerS});
    add_duration(app, "--save-every", in_seconds(save_seconds), "");
    add_duration(app, "--stalled-after", in_seconds(stalled_s), "");
    add_rate(app, "--link-rate", bits_per_s, "", 1e3);
    add_size(app, "--memory", memory, "");
    add_size(app, "--packet", packet, "", 576, 8'972);
  }
  Quantities(const Quantities&) = delete;
  Quantities& operator=(const Quantities&) = delete;
};

TEST(QuantityFlags, ValuesHaveUnits) {
  Quantities flags;
  EXPECT_EQ(parse_words(flags.app, {"--drain", "1.5s", "--save-every", "10m", "--stalled-after", "300ms", "--link-rate",
                                    "2.5gbit", "--memory", "64MiB", "--packet", "8972"}),
            "");
  EXPECT_EQ(flags.drain_ms, 1'500u);
  EXPECT_EQ(flags.save_seconds, 600u);
  EXPECT_DOUBLE_EQ(flags.stalled_s, 0.3);
  EXPECT_DOUBLE_EQ(flags.bits_per_s, 2.5e9);
  EXPECT_EQ(flags.memory, uint64_t{64} << 20);
  EXPECT_EQ(flags.packet, 8'972u);
}

TEST(QuantityFlags, HelpHasTheKindAndTheDefault) {
  const Quantities flags;
  const std::string help = flags.app.help();
  for (const char* line : {"--drain DURATION=10s", "--save-every DURATION=0s", "--stalled-after DURATION=5s",
                           "--link-rate RATE", "--memory SIZE=4GiB", "--packet SIZE=1472B"}) {
    EXPECT_THAT(help, HasSubstr(line));
  }
}

TEST(QuantityFlags, AWrongValueIsRefusedWithTheFlag) {
  struct Case {
    const char* flag;
    const char* text;
    const char* sentence;
  };
  for (const Case& one :
       {Case{"--drain", "10", "'10' is not a duration"}, Case{"--drain", "", "'' is not a duration"},
        Case{"--drain", "-1s", "is not a duration"}, Case{"--drain", "nan", "is not a duration"},
        Case{"--drain", "0s", "'0s': it takes 1ms to 1m"}, Case{"--drain", "61s", "'61s': it takes 1ms to 1m"},
        Case{"--drain", "0.5ms", "it takes 1ms to 1m"}, Case{"--drain", "1.5ms", "'1.5ms' is not a multiple of 1ms"},
        Case{"--save-every", "1500ms", "is not a multiple of 1s"}, Case{"--drain", "99999999999h", "is not a duration"},
        Case{"--link-rate", "1e9", "is not a rate"}, Case{"--link-rate", "999bit", "'999bit': it takes 1kbit"},
        Case{"--memory", "1.5GiB", "is not a size"}, Case{"--memory", "0", "'0': it takes 1B"},
        Case{"--packet", "575", "'575': it takes 576B to 8972B"}, Case{"--packet", "4294967872", "it takes 576B"}}) {
    Quantities flags;
    const std::string refusal = parse_words(flags.app, {one.flag, one.text});
    EXPECT_THAT(refusal, HasSubstr(one.sentence)) << one.flag << ' ' << one.text;
    EXPECT_THAT(refusal, HasSubstr(one.flag));
    EXPECT_EQ(flags.drain_ms, 10'000u);
  }
}

/// A file of flags in a folder of its own.
class ConfigFlag : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "config-flag-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    add_config_flag(app_);
    app_.add_option("--table", table_)->required();
    app_.add_option("--rows", rows_)->delimiter(',');
    app_.add_option("--shards", shards_);
    app_.add_flag("--json", json_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string written(const std::string& text) {
    std::ofstream(folder_ / "flags.toml") << text;
    return folder_ / "flags.toml";
  }

  std::filesystem::path folder_;
  CLI::App app_;
  std::string table_;
  std::vector<std::string> rows_;
  uint32_t shards_ = 1;
  bool json_ = false;
};

TEST_F(ConfigFlag, AFileSetsFlagsUnderAnyHeading) {
  EXPECT_EQ(parse_words(app_, {"--config", written("table = \"t.db\"\n[cluster]\nshards = 3\nrows = [\"a\", \"b\"]\n"
                                                   "[output]\njson = true\n")}),
            "");
  EXPECT_EQ(table_, "t.db");
  EXPECT_EQ(shards_, 3u);
  EXPECT_EQ(rows_, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(json_);
}

TEST_F(ConfigFlag, TheCommandLineWins) {
  EXPECT_EQ(parse_words(app_, {"--shards", "5", "--config", written("table = \"t.db\"\nshards = 3\n")}), "");
  EXPECT_EQ(shards_, 5u);
}

TEST_F(ConfigFlag, AFileThatIsWrongIsRefused) {
  EXPECT_THAT(parse_words(app_, {"--config", written("tabel = \"t.db\"\n")}),
              HasSubstr("'tabel' is no flag of this command; did you mean 'table'?"));
  EXPECT_THAT(parse_words(app_, {"--config", written("config = \"other.toml\"\n")}),
              HasSubstr("'config' is a flag of the command line alone"));
  EXPECT_THAT(parse_words(app_, {"--config", written("confg = \"other.toml\"\n")}), Not(HasSubstr("did you mean")));
  EXPECT_THAT(parse_words(app_, {"--config", written("table = \"a#b\"\n")}), HasSubstr("with '#' in it"));
  EXPECT_THAT(parse_words(app_, {"--config", written("table = 'a#b'\n")}), HasSubstr("with '#' in it"));
  EXPECT_THAT(parse_words(app_, {"--config", written("table = \"a\nshards = 2\n")}), HasSubstr("closing quote"));
  EXPECT_THAT(parse_words(app_, {"--config", written("shards = 2\ntable = \"t\"\nshards = 3\n")}),
              HasSubstr("'shards' is given twice"));
  EXPECT_THAT(parse_words(app_, {"--config", written("table = \"t\"\njson = 3\n")}),
              HasSubstr("json is true or false"));
  EXPECT_THAT(parse_words(app_, {"--config", written("table = \"t\"\nshards = \"many\"\n")}), HasSubstr("--shards"));
  EXPECT_THAT(parse_words(app_, {"--config", folder_ / "none.toml"}), HasSubstr("none.toml"));
  EXPECT_THAT(parse_words(app_, {"--config", folder_}), HasSubstr("was not readable"));
  EXPECT_THAT(parse_words(app_, {"--config", written("shards = 2\n")}), HasSubstr("--table is required"));
}

TEST(Completion, AScriptHasCommandsFlagsAndWords) {
  CLI::App root("a program", "prog");
  shape_command_line(root);
  CLI::App* run = root.add_subcommand("run", "runs");
  std::string word;
  uint32_t number = 0;
  bool flag = false;
  run->add_option("--mode", word)->type_name("fast|slow");
  run->add_option("--kind", word)->check(CLI::IsMember({"a", "b"}));
  run->add_option("-o,--output", word)->type_name("FILE");
  run->add_option("--folder", word)->type_name("FOLDER");
  run->add_option("--count", number);
  run->add_flag("--json", flag);
  for (const char* name : {"bash", "zsh"}) {
    const std::string script = completion_script(root, completion_shell(name).value());
    EXPECT_THAT(script, HasSubstr("'prog') echo 'run -h --help' ;;"));
    EXPECT_THAT(script, HasSubstr("'prog run --mode') echo 'fast slow' ;;"));
    EXPECT_THAT(script, HasSubstr("'prog run --kind') echo 'a b' ;;"));
    EXPECT_THAT(script, HasSubstr("'prog run --output') echo ':file' ;;"));
    EXPECT_THAT(script, HasSubstr("'prog run -o') echo ':file' ;;"));
    EXPECT_THAT(script, HasSubstr("'prog run --folder') echo ':folder' ;;"));
    EXPECT_THAT(script, HasSubstr("'prog run --count') echo ':none' ;;"));
    EXPECT_THAT(script, Not(HasSubstr("'prog run --json')"))) << "it takes no value";
    EXPECT_THAT(script, HasSubstr(" --json"));
    EXPECT_THAT(script, Not(HasSubstr("PROGRAM")));
    EXPECT_THAT(script, Not(HasSubstr("CASES")));
  }
  EXPECT_FALSE(completion_shell("fish").has_value());
}

TEST(Completion, AProgramPrintsItsScript) {
  CLI::App root("a program", "prog");
  shape_command_line(root);
  root.add_subcommand("run", "runs");
  root.require_subcommand(1);
  EXPECT_THAT(parse_words(root, {"--print-completion", "bash"}), HasSubstr("complete -o filenames -F _prog prog"));
  EXPECT_THAT(parse_words(root, {"--print-completion", "fish"}), HasSubstr("bash or zsh"));
  EXPECT_THAT(root.help(), Not(HasSubstr("--print-completion")));
}

}  // namespace
}  // namespace millrace::monitoring
