#include "kernels/base/words.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(DidYouMean, NamesTheNearestWord) {
  const std::vector<std::string> known = {"synchronous", "bounded_staleness", "partial", "asynchronous", "topk", "gap"};
  const std::pair<const char*, const char*> cases[] = {
      {"synchronus", "synchronous"},  // a letter is missing
      {"asynchronos", "asynchronous"},
      {"asnychronous", "asynchronous"},  // two are exchanged
      {"parital", "partial"},
      {"partiall", "partial"},
      {"bounded-staleness", "bounded_staleness"},
      {"top_k", "topk"},
      {"gop", "gap"},
      {"gpa", "gap"},
  };
  for (const auto& [word, meant] : cases) {
    EXPECT_EQ(did_you_mean(word, known), "; did you mean '" + std::string(meant) + "'?") << word;
  }
}

TEST(DidYouMean, IsSilentWhereNoWordIsNearOrTheWordIsRight) {
  const std::vector<std::string> known = {"synchronous", "partial", "gap", "x"};
  for (const char* word : {"", "late", "p", "y", "syn", "zip", "gap", "partial"}) {
    EXPECT_EQ(did_you_mean(word, known), "") << word;
  }
  EXPECT_EQ(did_you_mean("gap", {}), "");
  EXPECT_EQ(did_you_mean(std::string(1'000'000, 'a'), {std::string(1'000'000, 'b')}), "");
}

TEST(DidYouMean, TakesTheFirstOfEquallyNearWords) {
  EXPECT_EQ(did_you_mean("gab", {"gap", "gal"}), "; did you mean 'gap'?");
  EXPECT_EQ(did_you_mean("gab", {"gal", "gap"}), "; did you mean 'gal'?");
}

}  // namespace
}  // namespace millrace
