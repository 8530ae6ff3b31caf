#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/worker/temporary_folder.h"
#include "worker/program/layer_sizes.h"

namespace millrace::program {
namespace {

using ::testing::HasSubstr;

void expect_no_layers(const std::string& text, const std::string& sentence, ErrorCode code) {
  const auto sizes = layer_sizes(text);
  ASSERT_FALSE(sizes) << text;
  EXPECT_EQ(sizes.error().code, code) << text;
  EXPECT_THAT(sizes.error().message, HasSubstr(sentence));
}

TEST(LayerSizes, AreTheNumbersOfTheFlagInItsOrder) {
  EXPECT_EQ(layer_sizes("5").value(), std::vector<uint64_t>({5}));
  EXPECT_EQ(layer_sizes("4096,1,4294967296,4096").value(), std::vector<uint64_t>({4096, 1, 4294967296, 4096}));
  EXPECT_EQ(layer_sizes(" 3 , 4 ").value(), std::vector<uint64_t>({3, 4}));
}

TEST(LayerSizes, OfAFileAreThoseBetweenCommasSpacesAndLineEnds) {
  const TemporaryFolder folder;
  const std::string path = folder / "layers";
  std::ofstream(path) << "64, 1728\r\n36864\t9\n\n";
  EXPECT_EQ(layer_sizes("@" + path).value(), std::vector<uint64_t>({64, 1728, 36864, 9}));
  expect_no_layers("@" + path + "s", "cannot be read: No such file", ErrorCode::kIo);
  std::ofstream(path, std::ios::trunc) << "\n";
  expect_no_layers("@" + path, "names no layer", ErrorCode::kInvalidArgument);
  std::ofstream(path, std::ios::trunc) << std::string(200'000, ' ');
  expect_no_layers("@" + path, "has more than 160000 bytes", ErrorCode::kIo);
}

TEST(LayerSizes, ARefusalNamesTheInvalidSize) {
  for (const char* word : {"0", "-1", "x", "1e6", "4294967297", "99999999999999999999", "12k", "1.5"}) {
    expect_no_layers(std::string("7,") + word, std::string("'") + word + "' is not a number from 1 to 4294967296",
                     ErrorCode::kInvalidArgument);
  }
  expect_no_layers(",", "names no layer", ErrorCode::kInvalidArgument);
  std::string many = "1";
  for (size_t at = 1; at < kLayersMax; ++at) many += ",1";
  EXPECT_EQ(layer_sizes(many).value().size(), kLayersMax);
  expect_no_layers(many + ",1", "more than 10000 layers", ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::program
