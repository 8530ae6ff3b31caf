#include "kernels/methods/methods.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/codec/codec.h"
#include "tests/worker/option_texts.h"
#include "tests/worker/session_options.h"
#include "worker/config/job_config.h"

namespace millrace::worker {
namespace {

testing::SessionOptions methods_job_of(const Method& method) {
  testing::SessionOptions job;
  job.name = "job";
  job.shards = {"tcp://localhost:1"};
  job.workers = 4;
  const std::string period = method.reselect == "none" ? "" : ":" + std::to_string(method.threshold_period);
  testing::set_option(job, "select", method.select);
  testing::set_option(job, "reselect", std::string(method.reselect) + period);
  testing::set_option(job, "codec_up", method.codec_up);
  testing::set_option(job, "codec_error", method.codec_error);
  testing::set_option(job, "momentum", method.momentum);
  job.contributions.clip = method.clip;
  job.contributions.unbiased = method.unbiased;
  return job;
}

TEST(Methods, EachMethodMakesAValidJobWithItsCodecAndPeriod) {
  std::set<std::string_view> names;
  for (const Method& method : methods()) {
    SCOPED_TRACE(method.name);
    EXPECT_TRUE(names.insert(method.name).second);
    EXPECT_EQ(find_method(method.name), &method);
    EXPECT_FALSE(method.paper.empty() || method.summary.empty());
    const testing::SessionOptions job = methods_job_of(method);
    const auto spec = job_spec_of(job, job, std::vector<TensorOptions>{{.name = "w", .dimension = 1'000'000}});
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(codec_text(spec->codec_up), codec_text(codec_from_text(method.codec_up).value()));
    EXPECT_TRUE(check_method(method, method.select, method.codec_up));
    EXPECT_EQ(spec->reselect.threshold_period, method.threshold_period);
  }
  EXPECT_EQ(find_method("oktopk")->threshold_period, 32U) << "the paper's tau'";
  for (const char* name : {"three_lc", "sketchml", "skcompress", "dgc", "sparcml", "oktopk", "redsync", "gspar",
                           "deepreduce_p2", "deepreduce_fit_poly"}) {
    EXPECT_NE(find_method(name), nullptr) << name;
    EXPECT_NE(method_names().find(name), std::string::npos);
  }
  EXPECT_EQ(find_method(""), nullptr);
}

TEST(Methods, ADensityTakesThePlaceOfTheSelectionsOwn) {
  EXPECT_EQ(method_select(*find_method("dgc"), "0.01"), "topk:0.01:warm_up=400");
  EXPECT_EQ(method_select(*find_method("oktopk"), "500"), "threshold_reuse:500:32");
  EXPECT_EQ(method_select(*find_method("three_lc"), "0.1").error().message,
            "method three_lc has no density: its selection is none");
  EXPECT_FALSE(method_select(*find_method("dgc"), "1.5"));
}

TEST(Methods, OtherSelectionOrCodecKind_AnotherMethodAndAParameterIsNot) {
  const Method& dgc = *find_method("dgc");
  EXPECT_TRUE(check_method(dgc, "topk:0.05", "raw+raw"));
  EXPECT_FALSE(check_method(dgc, "threshold:0.05", "raw+raw"));
  EXPECT_FALSE(check_method(dgc, "none", "raw+raw"));
  EXPECT_FALSE(check_method(dgc, "topk:0.05", "gap+raw"));
  EXPECT_FALSE(check_method(dgc, "topk:0.05", "auto"));
  EXPECT_FALSE(check_method(dgc, "topk:nothing", "raw+raw"));
  EXPECT_FALSE(check_method(dgc, "topk:0.05", "raw+nothing"));
  const Method& three_lc = *find_method("three_lc");
  EXPECT_TRUE(check_method(three_lc, "none", "gap+three_lc:1"));
  EXPECT_TRUE(check_method(three_lc, "topk:0.1", "gap+three_lc")) << "it sets no selection";
  EXPECT_FALSE(check_method(three_lc, "none", "gap+qsgd4"));
}

}  // namespace
}  // namespace millrace::worker
