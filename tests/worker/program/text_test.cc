#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/plain_text.h"
#include "worker/program/json_text.h"
#include "worker/program/table.h"

/// Names of any script, and bytes that are no text, in the programs' output.
namespace millrace::program {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(JsonText, TextThatIsNotUtf8IsReplacedWhereDumpWouldThrow) {
  const nlohmann::json value = {{"model", "\xff.model"}, {"job", "训练一"}, {"rows", 3}};
  EXPECT_THROW((void)value.dump(), nlohmann::json::exception);
  const std::string text = json_text(value);
  EXPECT_THAT(text, HasSubstr("\"job\":\"训练一\""));
  EXPECT_THAT(text, HasSubstr(".model\""));
  EXPECT_THAT(text, HasSubstr("\"rows\":3"));
  EXPECT_TRUE(nlohmann::json::accept(text));
}

std::string nested(const std::string& open, const std::string& core, const std::string& close, int depth) {
  std::string text;
  for (int level = 0; level < depth; ++level) text += open;
  text += core;
  for (int level = 0; level < depth; ++level) text += close;
  return text;
}

TEST(ParseJson, ParsingRefusesTextNestedDeeperThanTheLimit) {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}"), std::pair("[1,{\"a\":[", "]}]")}) {
    const int levels = std::string_view(open).size() > 6 ? 3 : 1;
    const auto whole = parse_json(nested(open, "7", close, kJsonDepthMax / levels));
    ASSERT_TRUE(whole) << open << ": " << whole.error().message;
    EXPECT_THAT(json_text(*whole), HasSubstr("7"));
    for (const int depth : {kJsonDepthMax / levels + 1, 1'000, 100'000}) {
      for (const std::string& end : {std::string(close), std::string()}) {
        const auto deep = parse_json(nested(open, "7", end, depth));
        ASSERT_FALSE(deep) << open << depth;
        EXPECT_EQ(deep.error().code, ErrorCode::kMalformed);
        EXPECT_THAT(deep.error().message, HasSubstr("nested deeper than the 32 levels"));
      }
    }
  }
}

TEST(ParseJson, AWideTextIsReadWholeAndInvalidJsonIsRefused) {
  const auto wide = parse_json("[" + nested("[1],", "{\"a\":[{}]}", "", 1'000) + "]");
  ASSERT_TRUE(wide) << wide.error().message;
  EXPECT_EQ(wide->size(), 1'001u);
  EXPECT_EQ(wide->back(), nlohmann::json({{"a", {nlohmann::json::object()}}}));
  for (const char* text : {"", "{", "nothing", "{} {}", "[1,]"}) {
    const auto none = parse_json(text);
    ASSERT_FALSE(none) << text;
    EXPECT_EQ(none.error().message, "it is no JSON") << text;
  }
}

TEST(ObjectText, NamesOfEveryScriptStayAndNothingReachesTheTerminalAsACommand) {
  const nlohmann::json value = {
      {"rows", {{{"job", "训练一"}}, {{"job", "Übung"}}, {{"job", "a\x1b[31m"}}, {{"job", "b\xC2\x9B"}}}}};
  const std::string text = object_text(value, 0);
  EXPECT_THAT(text, HasSubstr("训练一"));
  EXPECT_THAT(text, HasSubstr("Übung"));
  EXPECT_THAT(text, HasSubstr("a?[31m"));
  EXPECT_THAT(text, Not(HasSubstr("\xC2\x9B"))) << "a control sequence in one character";
}

/// Texts that a terminal obeys, or would if they were UTF-8: C0, DEL, C1, and bytes of none.
std::vector<std::string> terminal_commands() {
  return {"a\x1b[31m", "b\rc\nd", "e\x7F", "f\xC2\x9B[31m", "g\xC2\x80", "h\xFF"};
}

bool has_command(const std::string& text) {
  std::string lines = text;
  std::erase(lines, '\n');  // between lines
  return !is_plain_text(lines);
}

TEST(ObjectText, NoKeyAndNoValueAtAnyPlaceReachesTheTerminalAsACommand) {
  for (const std::string& command : terminal_commands()) {
    const nlohmann::json value = {{command, command},
                                  {"list " + command, {command, 1, "x"}},
                                  {"empty " + command, nlohmann::json::array()},
                                  {"object " + command, {{command, 1}, {"inside " + command, command}}},
                                  {"rows " + command, {{{command, command}}, {{command, 2}}}},
                                  {"lists " + command, {{command, {command}}, {command}}},
                                  {"mixed " + command, {{{command, {command}}}, command, {command}}}};
    const std::string text = object_text(value, 2);
    EXPECT_FALSE(has_command(text)) << text;
    EXPECT_EQ(text.find("\nd"), std::string::npos) << "a text keeps its line: " << text;
    const nlohmann::json row = {{"algorithm", command}, {command, command}, {"k", 1}};
    const std::string table = bench_table({{"rows", nlohmann::json::array({row})}});
    EXPECT_FALSE(has_command(table)) << table;
    EXPECT_FALSE(has_command(json_text(value))) << json_text(value);
  }
}

TEST(ObjectText, AKeyThatIsPrintedOtherwiseStillFindsItsValues) {
  const nlohmann::json rows = {{"rows", {{{"a\x1b", "first"}}, {{"a\x1b", "second"}}}}};
  EXPECT_THAT(object_text(rows, 0), AllOf(HasSubstr("a?"), HasSubstr("first"), HasSubstr("second")));
  const nlohmann::json row = {{"algorithm", "x"}, {"a\x1b", "value"}};
  EXPECT_THAT(bench_table({{"rows", nlohmann::json::array({row})}}), AllOf(HasSubstr("a?"), HasSubstr("value")));
}

TEST(JsonText, EscapedTextReadsBackUnchanged) {
  for (const std::string text :
       {"e\x7F", "f\xC2\x9B[31m", "\xC2\x80\xC2\x9F\xC2\xA0\xC3\x9B", "\x1b\n\"\\", "训练一"}) {
    const nlohmann::json value = {{text, text}};
    const auto read = parse_json(json_text(value));
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(*read, value) << json_text(value);
  }
}

}  // namespace
}  // namespace millrace::program
