#include "server/process/racks_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace millrace::server {
namespace {

using ::testing::HasSubstr;

TEST(RacksFile, IsAListOfWorkersForEachRack) {
  const auto racks = parse_racks(R"({"racks": [[0, 1], [2, 63], [5]]})");
  ASSERT_TRUE(racks.has_value()) << racks.error().message;
  EXPECT_EQ(*racks, (std::vector<uint64_t>{0b11, (uint64_t{1} << 63) | 0b100, uint64_t{1} << 5}));
  EXPECT_TRUE(parse_racks(R"({"racks": []})")->empty());
}

TEST(RacksFile, AnInvalidRacksFileIsRefusedWithTheExpectedForm) {
  for (const char* text :
       {"", "[]", "{}", R"({"racks": 3})", R"({"racks": [3]})", R"({"racks": [[]]})", R"({"racks": [[64]]})",
        R"({"racks": [[-1]]})", R"({"racks": [["0"]]})", R"({"racks": [[0.5]]})", R"({"racks": [[0, 1], [1, 2]]})",
        R"({"racks": [[0]], "more": 1})", R"({"racks": [[0])"}) {
    const auto racks = parse_racks(text);
    ASSERT_FALSE(racks.has_value()) << text;
    EXPECT_EQ(racks.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(racks.error().message, HasSubstr("[[0, 1], [2, 3]]"));
  }
  std::string many = R"({"racks": [[0])";
  for (int i = 1; i < 64; ++i) many += ", [" + std::to_string(i) + "]";
  EXPECT_TRUE(parse_racks(many + "]}").has_value()) << "64 racks";
  EXPECT_FALSE(parse_racks(many + ", [0]]}").has_value()) << "65 racks";
}

TEST(RacksFile, ADeeplyNestedFileIsRefused) {
  const std::string deep = std::string(30'000, '[') + std::string(30'000, ']');
  for (const std::string& text :
       {deep, R"({"racks": )" + deep + "}", R"({"racks": [)" + deep + "]}", std::string(60'000, '[')}) {
    const auto racks = parse_racks(text);
    ASSERT_FALSE(racks.has_value());
    EXPECT_EQ(racks.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(RacksFile, SaysWhyItCannotBeRead) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("millrace-racks-" + std::to_string(::getpid()))).string();
  const auto missing = read_racks_file(path);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kIo);
  EXPECT_THAT(missing.error().message, HasSubstr("No such file"));
  std::ofstream(path) << R"({"racks": [[7]]})";
  EXPECT_EQ(*read_racks_file(path), std::vector<uint64_t>{1u << 7});
  std::ofstream(path) << std::string((1 << 16) + 1, ' ');
  EXPECT_THAT(read_racks_file(path).error().message, HasSubstr("more than 65536 bytes"));
  std::ofstream(path) << "no";
  EXPECT_THAT(read_racks_file(path).error().message, HasSubstr("is not JSON"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace millrace::server
