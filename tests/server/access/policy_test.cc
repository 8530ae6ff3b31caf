#include "server/access/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

namespace millrace::server {
namespace {

using ::testing::HasSubstr;

constexpr const char* kExample = R"({"rules": [
  {"keys": ["ads-*", "shared"], "jobs": ["ads-*"], "may": ["create", "join"], "workers": ["0-3", "9"],
   "entries_max": 1000, "jobs_max": 2, "job_memory": "64MiB", "rate": "800mbit"},
  {"keys": ["guest"], "jobs": ["*"], "may": ["join"]},
  {"keys": ["ads-*"], "jobs": ["*"], "may": ["create"]}]})";

std::string refused(std::string_view key, const JoinRequest& request) {
  const Status judged = Policy::parse(kExample).value().judge(key, request);
  return judged ? "" : judged.error().message;
}

/// The obvious matcher: exponential, for short texts.
bool matches_slowly(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*')
    return matches_slowly(pattern.substr(1), text) || (!text.empty() && matches_slowly(pattern, text.substr(1)));
  return !text.empty() && pattern[0] == text[0] && matches_slowly(pattern.substr(1), text.substr(1));
}

TEST(Pattern, EqualsTheObviousMatcher) {
  std::mt19937 draw(7);
  const auto word = [&](std::string_view letters) {
    std::string text(draw() % 8, ' ');
    for (char& c : text) c = letters[draw() % letters.size()];
    return text;
  };
  for (int round = 0; round < 20'000; ++round) {
    const std::string pattern = word("ab*");
    const std::string text = word("ab");
    ASSERT_EQ(matches_pattern(pattern, text), matches_slowly(pattern, text)) << pattern << " " << text;
  }
}

TEST(Pattern, HostileOnesAreFast) {
  std::string pattern;
  for (int at = 0; at < 200; ++at) pattern += "*a";
  EXPECT_FALSE(matches_pattern(pattern + "b", std::string(10'000, 'a')));
}

TEST(Policy, WithoutOneEverythingIsAllowed) {
  const Policy none;
  EXPECT_TRUE(none.allows_everything());
  EXPECT_TRUE(none.judge("x", {.job = "y", .creates = true}));
}

TEST(Policy, RefusalsSayWhichRightIsLacking) {
  EXPECT_EQ(refused("ads-1", {.job = "ads-x", .worker = 3, .creates = true}), "");
  EXPECT_EQ(refused("shared", {.job = "ads-x", .worker = 9}), "");
  EXPECT_EQ(refused("guest", {.job = "any"}), "");
  EXPECT_EQ(refused("guest", {.job = "any", .creates = true}), "key 'guest' lacks the right to create job 'any'");
  EXPECT_EQ(refused("stranger", {.job = "any"}), "key 'stranger' lacks the right to join job 'any'");
  EXPECT_EQ(refused("shared", {.job = "news"}), "key 'shared' lacks the right to join job 'news'");
  EXPECT_EQ(refused("ads-1", {.job = "ads-x", .worker = 4}),
            "key 'ads-1' lacks the right to be worker 4 (it may be 0-3, 9) of job 'ads-x'");
}

TEST(Policy, QuotasAreLimits) {
  EXPECT_EQ(refused("ads-1", {.job = "ads-x", .entries = 1000}), "");
  EXPECT_THAT(refused("ads-1", {.job = "ads-x", .entries = 1001}), HasSubstr("over the quota"));
  const Policy policy = Policy::parse(kExample).value();
  EXPECT_TRUE(policy.judge_opening("ads-1", "ads-x", 1));
  EXPECT_THAT(policy.judge_opening("ads-1", "ads-x", 2).error().message, HasSubstr("its quota is 2"));
  EXPECT_TRUE(policy.judge_opening("gone", "ads-x", 2)) << "a job of a key that lost its rights continues";
  EXPECT_EQ(policy.rule_of("ads-1", "ads-x")->job_memory_bytes_max, uint64_t{64} << 20);
  EXPECT_EQ(policy.rule_of("ads-1", "ads-x")->rate_bits_max, 8e8);
}

TEST(Policy, AKeyHasTheLeastRateOfItsRules) {
  const Policy policy = Policy::parse(R"({"rules": [{"keys": ["a*"], "jobs": ["x"], "rate": "8gbit"},
      {"keys": ["ab"], "jobs": ["y"], "rate": "8mbit"}, {"keys": ["a*"], "jobs": ["z"]}]})")
                            .value();
  EXPECT_EQ(policy.rate_bits_of("ab"), 8e6);
  EXPECT_EQ(policy.rate_bits_of("ac"), 8e9);
  EXPECT_TRUE(std::isinf(policy.rate_bits_of("b")));
  EXPECT_TRUE(std::isinf(Policy().rate_bits_of("a")));
}

TEST(Policy, TheFirstRuleThatMatchesDecidesAlone) {
  EXPECT_EQ(refused("ads-1", {.job = "news", .worker = 77, .creates = true}), "") << "the third rule";
  EXPECT_NE(refused("ads-1", {.job = "ads-x", .worker = 77, .creates = true}), "") << "the first one";
}

TEST(Policy, NamedTokensObserveAndEndAsTheirFirstRuleSays) {
  const Policy policy = Policy::parse(R"({"rules": [
      {"keys": ["ops"], "jobs": ["ads-*"], "may": ["observe", "end"]},
      {"keys": ["ops", "eve"], "jobs": ["*"], "may": ["observe"]},
      {"keys": ["*"], "jobs": ["*"], "may": ["create", "join", "end"]}]})")
                            .value();
  const auto why = [&](const char* token, const char* job, ReaderRight right) {
    const Status judged = policy.judge_reader(token, job, right);
    return judged ? std::string() : judged.error().message;
  };
  EXPECT_EQ(why("ops", "ads-1", ReaderRight::kEnd), "");
  EXPECT_EQ(why("ops", "ads-1", ReaderRight::kObserve), "");
  EXPECT_EQ(why("ops", "news", ReaderRight::kEnd), "token 'ops' lacks the right to end job 'news'");
  EXPECT_EQ(why("eve", "news", ReaderRight::kObserve), "");
  EXPECT_EQ(why("bob", "news", ReaderRight::kObserve), "token 'bob' lacks the right to observe job 'news'");
  EXPECT_EQ(why("bob", "news", ReaderRight::kEnd), "");
  EXPECT_FALSE(policy.judge("ops", {.job = "ads-1"})) << "neither right lets a worker join";
  EXPECT_TRUE(Policy().judge_reader("bob", "news", ReaderRight::kEnd)) << "without a policy";
  EXPECT_FALSE(Policy::parse(R"({"rules": []})").value().judge_reader("bob", "news", ReaderRight::kObserve));
}

TEST(Policy, NoRuleAllowsNothing) {
  const Policy nothing = Policy::parse(R"({"rules": []})").value();
  EXPECT_FALSE(nothing.allows_everything());
  EXPECT_FALSE(nothing.judge("x", {.job = "y"}));
}

TEST(Policy, OtherTextsAreRefusedWithTheirRule) {
  for (const char* text : {"", "[]", "{}", R"({"rules": 1})", R"({"rules": [], "more": 1})", R"({"rules": [)"})
    EXPECT_THAT(Policy::parse(text).error().message, HasSubstr("not JSON of the form")) << text;
  const auto second = [](const std::string& rule) {
    const auto parsed = Policy::parse(R"({"rules": [{"keys": ["a"], "jobs": ["b"]}, )" + rule + "]}");
    return parsed ? std::string() : parsed.error().message;
  };
  EXPECT_EQ(second(R"({"keys": ["a"], "jobs": ["b"], "may": []})"), "rule 2: 'may' is not a list of texts");
  EXPECT_THAT(second("1"), HasSubstr("rule 2: it is no object"));
  EXPECT_THAT(second(R"({"keys": ["a"]})"), HasSubstr("'keys' and 'jobs' are needed"));
  EXPECT_THAT(second(R"({"keys": "a", "jobs": ["b"]})"), HasSubstr("'keys' is not a list"));
  EXPECT_THAT(second(R"({"keys": [1], "jobs": ["b"]})"), HasSubstr("'keys' is not a list"));
  EXPECT_THAT(second(R"({"key": ["a"], "jobs": ["b"]})"), HasSubstr("did you mean 'keys'?"));
  EXPECT_THAT(second(R"({"keys": ["a"], "jobs": ["b"], "may": ["rule"]})"), HasSubstr("'rule' is no right"));
  EXPECT_THAT(second(R"({"keys": ["a"], "jobs": ["b"], "may": ["observe", "End"]})"), HasSubstr("'End' is no right"));
  for (const char* workers : {"", "a", "3-", "-3", "4-3", "0-4096", "1 "})
    EXPECT_THAT(second(R"({"keys": ["a"], "jobs": ["b"], "workers": [")" + std::string(workers) + "\"]}"),
                HasSubstr("workers"))
        << workers;
  EXPECT_THAT(second(R"({"keys": ["a"], "jobs": ["b"], "jobs_max": -1})"), HasSubstr("'jobs_max'"));
  EXPECT_THAT(second(R"({"keys": ["a"], "jobs": ["b"], "jobs_max": 4294967296})"), HasSubstr("'jobs_max'"));
  EXPECT_THAT(second(R"({"keys": ["a"], "jobs": ["b"], "rate": 100})"), HasSubstr("'rate'")) << "it has a unit";
  EXPECT_THAT(second(R"({"keys": ["a"], "jobs": ["b"], "job_memory": "much"})"), HasSubstr("'job_memory'"));
  EXPECT_EQ(second(R"({"keys": ["a"], "jobs": ["b"], "job_memory": 1000})"), "");
  EXPECT_EQ(Policy::parse(std::string(Policy::kTextBytesMax + 1, ' ')).error().code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(second(R"({"keys": ["a"], "jobs": ["b"], "keys": ["*"]})"), HasSubstr("'keys' twice"));
  EXPECT_THAT(Policy::parse(R"({"rules": [], "rules": []})").error().message, HasSubstr("'rules' twice"));
  EXPECT_EQ(Policy::read("/no/such/policy").error().code, ErrorCode::kIo);
  EXPECT_THAT(Policy::read("/dev/null").error().message, HasSubstr("not a file"));
}

}  // namespace
}  // namespace millrace::server
