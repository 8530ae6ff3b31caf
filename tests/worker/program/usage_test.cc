#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "monitoring/command_line/usage_sentence.h"
#include "worker/program/flag_range.h"

/// The sentence about a wrong command line.
namespace millrace::program {
namespace {

std::string sentence_of(std::vector<std::string> words) {
  CLI::App root("a program", "millrace");
  CLI::App* train = root.add_subcommand("train");
  std::string data;
  std::string model = "lr";
  bool audit = false;
  train->add_option("--train", data)->required();
  train->add_option("--model", model)->check(one_of({"lr", "svm", "l2svm"}));
  train->add_flag("--audit", audit);
  std::ranges::reverse(words);
  try {
    root.parse(words);
  } catch (const CLI::ParseError& error) {
    return monitoring::usage_sentence(monitoring::named_command(root), error);
  }
  return "taken";
}

TEST(UsageSentence, AnUnknownFlagOrWordIsRefusedWithTheNearestOne) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"train", "--train", "a"}, "taken"},
      {{"train", "--trian", "a"}, "there is no flag --trian; did you mean '--train'?"},
      {{"train", "--train", "a", "--adit"}, "there is no flag --adit; did you mean '--audit'?"},
      {{"train", "--train", "a", "--modle=lr"}, "there is no flag --modle; did you mean '--model'?"},
      {{"train", "--train", "a", "--nothing-like-it"}, "there is no flag --nothing-like-it"},
      {{"train", "--train", "a", "--model", "svn"}, "--model: 'svn' is not one of lr, svm, l2svm; did you mean 'svm'?"},
      {{"train", "--train", "a", "--model", "forest"}, "--model: 'forest' is not one of lr, svm, l2svm"},
      {{"train"}, "--train is required"},
  };
  for (const auto& [words, sentence] : cases) EXPECT_EQ(sentence_of(words), sentence);
}

}  // namespace
}  // namespace millrace::program
