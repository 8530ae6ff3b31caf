#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/libsvm_text.h"
#include "worker/training/data/libsvm.h"

/// Each field of a row of LIBSVM text is read whole or refused, with advice that helps.
namespace millrace::training {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<Dataset> parse_fields(std::string_view text, const LibsvmOptions& options = {}) {
  return millrace::testing::parse_libsvm(text, "a.svm", options);
}

std::string fields_refusal(std::string_view text, const LibsvmOptions& options = {}) {
  const auto data = parse_fields(text, options);
  return data ? "accepted" : data.error().message;
}

/// Each place of a row with every text that begins or ends as a number does, and is none.
TEST(Libsvm, NoFieldIsReadByHalf) {
  const std::vector<std::string> half = {"",
                                         "x",
                                         "3x",
                                         "x3",
                                         "3 x",
                                         "3,4",
                                         "3-",
                                         "-",
                                         "+",
                                         "+-3",
                                         "++3",
                                         "--3",
                                         "0x3",
                                         "3e",
                                         "1.2.3",
                                         "3:",
                                         ":",
                                         "3|",
                                         "\xEF\xBB\xBF\x33",
                                         "nan",
                                         "inf",
                                         "1e999x",
                                         "3f",
                                         "3\x01",
                                         "3/4"};
  for (const std::string& text : half) {
    const std::vector<std::string> rows = {text + "x 1:1",     "1 qid:" + text + " 1:1",
                                           "1 " + text + ":1", "1 qid:3 " + text + ":1",
                                           "1 1:" + text,      "1 1:1 2:" + text};
    for (const std::string& row : rows)
      EXPECT_THAT(fields_refusal("0 1:1\n" + row + "\n"), StartsWith("a.svm:2: ")) << row;
  }
  for (const char* query : {"abc", "-1", "1.5", "+1", "18446744073709551616"}) {
    EXPECT_THAT(fields_refusal("1 1:1\n0 qid:" + std::string(query) + " 1:1\n"),
                HasSubstr("a.svm:2: the query in 'qid:" + std::string(query) + "' is not a whole number"));
  }
  EXPECT_TRUE(parse_fields("1 qid:18446744073709551615 1:1\n0 qid:0 1:1\n"));
}

TEST(Libsvm, TheAdviceOfAnIndexPastTheDimensionIsTheLeastThatHelps) {
  for (const IndexBase base : {IndexBase::kOne, IndexBase::kZero}) {
    const std::string last = base == IndexBase::kZero ? "9" : "10";
    const std::string past = base == IndexBase::kZero ? "10" : "11";
    const auto text_with = [](const std::string& index) { return "1 1:1\n0 " + index + ":1\n"; };
    EXPECT_EQ(parse_fields(text_with(last), {.dimension = 10, .index_base = base})->dimension, 10U);
    const std::string sentence = fields_refusal(text_with(past), {.dimension = 10, .index_base = base});
    EXPECT_THAT(sentence, HasSubstr("index " + past + " is above " + last + ", the largest of --dimension 10"));
    EXPECT_THAT(sentence, HasSubstr("give --dimension 11 or more"));
    EXPECT_EQ(sentence.find("--index-base 0") != std::string::npos, base == IndexBase::kZero) << sentence;
    EXPECT_EQ(parse_fields(text_with(past), {.dimension = 11, .index_base = base})->dimension, 11U);
  }
  EXPECT_THAT(fields_refusal("1 4294967296:1\n", {.dimension = 10}), EndsWith("the largest of --dimension 10"))
      << "no --dimension is that large";
}

}  // namespace
}  // namespace millrace::training
