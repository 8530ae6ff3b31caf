#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "worker/cli/json_text.h"
#include "worker/cli/table.h"

/// Names of any script, and bytes that are no text, in what the programs print.
namespace millrace::cli {
namespace {

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

TEST(ObjectText, NamesOfEveryScriptStayAndNothingReachesTheTerminalAsACommand) {
  const nlohmann::json value = {
      {"rows", {{{"job", "训练一"}}, {{"job", "Übung"}}, {{"job", "a\x1b[31m"}}, {{"job", "b\xC2\x9B"}}}}};
  const std::string text = object_text(value, 0);
  EXPECT_THAT(text, HasSubstr("训练一"));
  EXPECT_THAT(text, HasSubstr("Übung"));
  EXPECT_THAT(text, HasSubstr("a?[31m"));
  EXPECT_THAT(text, Not(HasSubstr("\xC2\x9B"))) << "a control sequence in one character";
}

}  // namespace
}  // namespace millrace::cli
