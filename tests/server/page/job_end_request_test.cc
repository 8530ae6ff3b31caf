#include "server/page/job_end_request.h"

#include <gtest/gtest.h>

namespace millrace::server {
namespace {

TEST(JobEndRequest, APathNamesAJob) {
  EXPECT_EQ(job_of_end_path("/jobs/night/end"), "night");
  EXPECT_EQ(job_of_end_path("/jobs/end/end"), "end");
  EXPECT_EQ(job_of_end_path("/jobs/a%2Fb%20%25%c3%A4/end"), "a/b %\u00e4");
  EXPECT_EQ(job_of_end_path("/jobs/%2e%2e/end"), "..");
  EXPECT_EQ(job_of_end_path("/jobs/" + std::string(255, 'n') + "/end"), std::string(255, 'n'));
  for (const std::string& path :
       {std::string("/jobs/"), std::string("/jobs/end"), std::string("/jobs//end"), std::string("/jobs/a"),
        std::string("/jobs/a/end/"), std::string("/jobs/a/b/end"), std::string("/jobs/a/End"),
        std::string("/job/a/end"), std::string("/jobs/%/end"), std::string("/jobs/%4/end"),
        std::string("/jobs/%4g/end"), std::string("/jobs/%-1/end"), std::string("/jobs/a%00/end"),
        std::string("/jobs/a%0a/end"), std::string("/jobs/%ff/end"), std::string("/jobs/%c3/end"),
        "/jobs/" + std::string(256, 'n') + "/end", "/jobs/" + std::string(8'000, '%') + "/end"})
    EXPECT_EQ(job_of_end_path(path), std::nullopt) << path;
}

TEST(JobEndRequest, ABodyIsAReason) {
  EXPECT_EQ(reason_of_body(""), "");
  EXPECT_EQ(reason_of_body(" \r\n"), "");
  EXPECT_EQ(reason_of_body("wrong data\n"), "wrong data");
  EXPECT_EQ(reason_of_body(R"(  {"reason": "wrong \"data\""})"), "wrong \"data\"");
  EXPECT_EQ(reason_of_body("[not an object]"), "[not an object]");
  for (const std::string& body :
       {std::string("{"), std::string("{}"), std::string(R"({"reason": 1})"), std::string(R"({"reason": null})"),
        std::string(R"({"why": "a"})"), std::string(R"({"reason": "a", "more": 1})"),
        std::string(R"({"reason": "a"} b)"), std::string("{\"reason\": \"\xff\"}"), std::string(4'000, '{'),
        R"({"reason": )" + std::string(4'000, '[')}) {
    const auto reason = reason_of_body(body);
    ASSERT_FALSE(reason) << body;
    EXPECT_EQ(reason.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace::server
