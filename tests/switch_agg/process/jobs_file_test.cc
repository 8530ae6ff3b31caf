#include "switch_agg/process/jobs_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kernels/base/plain_text.h"
#include "protocol/address/endpoint_text.h"

namespace millrace::switch_agg {
namespace {

using ::testing::HasSubstr;

class JobsFile : public ::testing::Test {
 protected:
  JobsFile() {
    std::string pattern = (std::filesystem::temp_directory_path() / "millrace-switch-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    std::ofstream(folder_ + "/a.key") << std::string(62, '0') << "2a\n";
    ::chmod((folder_ + "/a.key").c_str(), 0600);
  }
  ~JobsFile() override { std::filesystem::remove_all(folder_); }

  Result<std::vector<SwitchJob>> read(const std::string& text) const {
    std::ofstream(folder_ + "/jobs.json") << text;
    return read_jobs_file(folder_ + "/jobs.json");
  }
  /// The message of a list of one job: the whole one of below with `change` in place of its fields of the same names.
  std::string refusal(const std::string& jobs) const {
    const auto read_jobs = read(jobs);
    EXPECT_FALSE(read_jobs) << jobs;
    if (read_jobs) return {};
    EXPECT_EQ(read_jobs.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(read_jobs.error().message, HasSubstr(folder_ + "/jobs.json: "));
    return read_jobs.error().message;
  }

  std::string folder_;
};

constexpr const char* kWhole =
    R"("name": "a", "job": 7, "key_file": "a.key", "workers": 4, "window_indices": 16384, "slots": 64)";

std::string list(const std::string& fields) { return R"({"jobs": [{)" + fields + "}]}"; }
std::string with(const std::string& more) { return list(std::string(kWhole) + ", " + more); }
std::string replaced(const std::string& from, const std::string& to) {
  std::string text = list(kWhole);
  return text.replace(text.find(from), from.size(), to);
}

TEST_F(JobsFile, TheLeastJobHasDefaults) {
  const auto jobs = read(list(kWhole));
  ASSERT_TRUE(jobs) << jobs.error().message;
  ASSERT_EQ(jobs->size(), 1u);
  const SwitchJob& job = jobs->front();
  EXPECT_EQ(job.name, "a");
  EXPECT_EQ(job.job, 7u);
  EXPECT_EQ(job.key.back(), 0x2a);
  EXPECT_EQ(job.role, Role::kReduce);
  EXPECT_EQ(job.workers, 4u);
  EXPECT_EQ(job.window_indices, 16384u);
  EXPECT_EQ(job.slots, 64u);
  EXPECT_EQ(job.reselect_k, 0u);
  EXPECT_EQ(job.packet_bytes, 0u) << "1472, or --packet-bytes-max where that is less";
  EXPECT_EQ(job.lease_ns, 10 * kNsPerS);
}

TEST_F(JobsFile, ADeeplyNestedFileIsRefused) {
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  std::string objects;
  for (int level = 0; level < 100'000; ++level) objects += "{\"a\":";
  for (const std::string& text :
       {deep, std::string(1'000'000, '['), R"({"jobs": )" + deep + "}", list("\"name\": " + deep),
        with("\"racks\": " + deep), objects + "1" + std::string(100'000, '}')}) {
    EXPECT_NE(refusal(text), "");
  }
}

TEST_F(JobsFile, NoTextOfTheFileReachesTheTerminalAsACommand) {
  for (const std::string command : {"a\\u001b[31m", "b\\u009b31m", "c\xC2\x9B", "d\x7F", "e\x1b[31m", "f\xFF"}) {
    for (const std::string& text :
         {with("\"" + command + "\": 1"), replaced("\"a\"", "\"" + command + "\""),
          list("\"name\": \"" + command + "\""), "{\"" + command + "\" 1}", "[\"" + command}) {
      const std::string sentence = refusal(text);
      EXPECT_TRUE(is_plain_text(sentence)) << sentence;
    }
  }
}

TEST_F(JobsFile, EveryFieldIsRead) {
  const auto jobs = read(with(R"("role": "combine", "reselect_k": 1000, "result_index_codec": "bitmap",
      "packet_bytes": 8972, "lease_seconds": 3, "shard": "192.0.2.9:7600", "rack": [0, 2, 63], "rack_number": 5)"));
  ASSERT_TRUE(jobs) << jobs.error().message;
  const SwitchJob& job = jobs->front();
  EXPECT_EQ(job.role, Role::kCombine);
  EXPECT_EQ(job.reselect_k, 1000u);
  EXPECT_EQ(job.result_codecs.index, protocol::WindowIndexCodec::kBitmap);
  EXPECT_EQ(job.packet_bytes, 8972u);
  EXPECT_EQ(job.lease_ns, 3 * kNsPerS);
  EXPECT_EQ(endpoint_text(job.shard), "192.0.2.9:7600");
  EXPECT_EQ(job.rack, 1u | 4u | uint64_t{1} << 63);
  EXPECT_EQ(job.rack_number, 5u);
}

TEST_F(JobsFile, LanesShareSlotsAndNumbers) {
  const auto jobs = read(with(R"("lanes": 4, "reselect_k": 4)"));
  ASSERT_TRUE(jobs) << jobs.error().message;
  EXPECT_EQ(jobs->front().lanes, 4u);
  EXPECT_EQ(read(list(kWhole))->front().lanes, 1u);
  EXPECT_THAT(refusal(with(R"("lanes": 0)")), HasSubstr("\"lanes\" must be a number from 1 to 16"));
  EXPECT_THAT(refusal(with(R"("lanes": 17)")), HasSubstr("\"lanes\" must be a number from 1 to 16"));
  EXPECT_THAT(refusal(with(R"("lanes": 3)")), HasSubstr("\"slots\" must be a multiple of \"lanes\""));
  EXPECT_THAT(refusal(with(R"("lanes": 4, "reselect_k": 3)")),
              HasSubstr("\"reselect_k\" must be 0 or at least \"lanes\""));
  const auto two = [](const std::string& first, const std::string& second) {
    std::string other = std::string(kWhole);
    other.replace(other.find("\"a\""), 3, "\"b\"").replace(other.find("7,"), 2, second + ",");
    return "{\"jobs\": [{" + std::string(kWhole) + ", " + first + "}, {" + other + "}]}";
  };
  EXPECT_THAT(refusal(two(R"("lanes": 4)", "10")), HasSubstr("a job of several lanes has as many numbers"));
  EXPECT_TRUE(read(two(R"("lanes": 4)", "11")));
  EXPECT_TRUE(read(two(R"("lanes": 4)", "6")));
  std::string last = std::string(kWhole) + R"(, "lanes": 2)";
  last.replace(last.find("7,"), 2, "4294967295,");
  EXPECT_THAT(refusal(list(last)), HasSubstr("needs a number for each of its \"lanes\""));
}

TEST_F(JobsFile, RacksInFrontOfADeciderAreRead) {
  const auto jobs = read(with(R"("racks": [[0, 2], [1]])"));
  ASSERT_TRUE(jobs) << jobs.error().message;
  EXPECT_EQ(jobs->front().racks, (std::vector<uint64_t>{5, 2}));
  EXPECT_THAT(refusal(with(R"("racks": 7)")), HasSubstr("\"racks\" must be a list of at most 64 racks"));
  EXPECT_THAT(refusal(with(R"("racks": [[64]])")), HasSubstr("a list of numbers of workers, 0 to 63"));
  EXPECT_THAT(refusal(with(R"("racks": [[0, 1], [1, 2]])")), HasSubstr("must have each worker in one rack only"));
  EXPECT_THAT(refusal(with(R"("rack_number": 1)")), HasSubstr("only \"role\": \"combine\" has"));
  EXPECT_THAT(refusal(with(R"("role": "combine", "shard": "192.0.2.9:7600", "rack": [0], "racks": [[0]])")),
              HasSubstr("only \"role\": \"reduce\" has"));
}

TEST_F(JobsFile, NoJobsAreAList) {
  const auto jobs = read(R"({"jobs": []})");
  ASSERT_TRUE(jobs);
  EXPECT_TRUE(jobs->empty());
}

TEST_F(JobsFile, AFileWithoutAListOfJobsIsRefused) {
  for (const char* text :
       {"", "{", "[]", "7", "null", R"({"jobs": 7})", R"({"job": []})", R"({"jobs": [], "more": 1})"})
    EXPECT_THAT(refusal(text), HasSubstr(R"({"jobs": [{)")) << text;
  EXPECT_THAT(refusal(R"({"jobs": [7]})"), HasSubstr("job 1 of the list must be an object"));
}

TEST_F(JobsFile, ARefusalNamesThePositionOfInvalidJson) {
  EXPECT_THAT(refusal("{\"jobs\": [\n  {\"name\": \"a\",\n   \"job\": 7,}\n]}"),
              ::testing::AllOf(HasSubstr("jobs.json: line 3, column 13: "), HasSubstr("unexpected '}'"),
                               HasSubstr("must be JSON of the form {\"jobs\": [")));
}

TEST_F(JobsFile, ARefusalNamesTheLineOfAWrongJob) {
  const std::string whole = std::string("{") + kWhole + "}";
  std::string other = whole;
  other.replace(other.find("\"a\""), 3, R"("}],\"{[")").replace(other.find("\"job\": 7"), 8, "\"job\": 8");
  const std::string bad = R"({"name": "b"})";
  EXPECT_THAT(refusal("{\n\"jobs\":\n[" + whole + ",\n\n" + other + ",\n" + bad + "\n]}"),
              HasSubstr("jobs.json: line 6: job 'b' lacks \"job\""));
  EXPECT_THAT(refusal("{\"jobs\": [\n" + whole + ",\n7]}"), HasSubstr("line 3: job 2 of the list must be an object"));
  EXPECT_THAT(refusal("{\"jobs\": [\n" + whole + ",\n" + whole + "]}"), HasSubstr("line 3: jobs 'a' and 'a' have"));
}

TEST_F(JobsFile, WrongFieldsAreNamed) {
  EXPECT_THAT(refusal(with(R"("slot": 4)")), HasSubstr("job 'a' has a field 'slot' that is not known"));
  EXPECT_THAT(refusal(replaced(R"("name": "a", )", "")), HasSubstr("job 1 of the list lacks \"name\""));
  EXPECT_THAT(refusal(replaced(R"("name": "a")", R"("name": "")")), HasSubstr("\"name\" must be a text"));
  EXPECT_THAT(refusal(replaced(R"("job": 7)", R"("job": -1)")),
              HasSubstr("\"job\" must be a number from 0 to 4294967295"));
  EXPECT_THAT(refusal(replaced(R"("job": 7)", R"("job": 4294967296)")), HasSubstr("\"job\" must be a number"));
  EXPECT_THAT(refusal(replaced(R"("job": 7)", R"("job": 1.5)")), HasSubstr("\"job\" must be a number"));
  EXPECT_THAT(refusal(replaced(R"("workers": 4)", R"("workers": 65)")),
              HasSubstr("\"workers\" must be a number from 1 to 64"));
  EXPECT_THAT(refusal(replaced("16384", "100")), HasSubstr("a multiple of 64"));
  EXPECT_THAT(refusal(replaced("16384", "65600")), HasSubstr("\"window_indices\" must be a number from 64 to 65536"));
  EXPECT_THAT(refusal(replaced(R"("slots": 64)", R"("slots": 0)")),
              HasSubstr("\"slots\" must be a number from 1 to 128"));
  EXPECT_THAT(refusal(with(R"("role": "both")")), HasSubstr(R"("role" must be "reduce" or "combine")"));
  EXPECT_THAT(refusal(with(R"("result_index_codec": "bloom")")), HasSubstr(R"("raw" or "gap" or "bitmap")"));
  EXPECT_THAT(refusal(with(R"("lease_seconds": 0)")), HasSubstr("\"lease_seconds\""));
}

TEST_F(JobsFile, RacksNeedTheirShard) {
  EXPECT_THAT(refusal(with(R"("role": "combine", "rack": [0])")), HasSubstr("lacks \"shard\""));
  EXPECT_THAT(refusal(with(R"("role": "combine", "shard": "h:1", "rack": [0])")), HasSubstr("'h:1' is not an address"));
  EXPECT_THAT(refusal(with(R"("role": "combine", "shard": "localhost:7600", "rack": [0])")),
              HasSubstr("'localhost:7600' is not an address: give a number"))
      << "no name reaches a socket";
  EXPECT_THAT(refusal(with(R"("role": "combine", "shard": "192.0.2.9:1", "rack": [])")),
              HasSubstr("\"rack\" must be a list"));
  EXPECT_THAT(refusal(with(R"("role": "combine", "shard": "192.0.2.9:1", "rack": [64])")), HasSubstr("\"rack\""));
  EXPECT_THAT(refusal(with(R"("rack": [0])")), HasSubstr("only \"role\": \"combine\" has"));
}

TEST_F(JobsFile, TwoOfOneNameOrNumberAreRefused) {
  const std::string first = std::string("{") + kWhole + "}";
  const auto twice = [&](const std::string& second) { return R"({"jobs": [)" + first + ", " + second + "]}"; };
  EXPECT_THAT(refusal(twice(first)), HasSubstr("the same name or number"));
  std::string other = first;
  EXPECT_THAT(refusal(twice(other.replace(other.find("\"a\""), 3, "\"b\""))), HasSubstr("'a' and 'b'"));
}

TEST_F(JobsFile, FilesThatCannotBeReadAreNamed) {
  const auto missing = read_jobs_file(folder_ + "/none.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kIo);
  EXPECT_THAT(missing.error().message, HasSubstr("none.json"));
  EXPECT_THAT(missing.error().message, HasSubstr("No such file or directory; give another --jobs, or write it"));
  const auto folder = read_jobs_file(folder_);
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, ErrorCode::kIo);
  EXPECT_THAT(folder.error().message, HasSubstr("Is a directory; give the file itself"));
  const auto large = read(std::string(kJobsFileBytesMax + 1, ' '));
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message, HasSubstr("no list of jobs"));
  const auto keyless = read(replaced("a.key", "b.key"));
  ASSERT_FALSE(keyless);
  EXPECT_THAT(keyless.error().message, HasSubstr("job 'a'"));
}

TEST_F(JobsFile, AKeyThatOthersMayReadIsRefused) {
  ::chmod((folder_ + "/a.key").c_str(), 0644);
  EXPECT_THAT(refusal(list(kWhole)), HasSubstr("chmod"));
}

}  // namespace
}  // namespace millrace::switch_agg
