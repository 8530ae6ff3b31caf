#include <gtest/gtest.h>

#include <cctype>
#include <cstdio>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "protocol/container/container.h"
#include "protocol/job/layout.h"
#include "protocol/messages/frame.h"
#include "protocol/messages/log_digest.h"
#include "protocol/messages/shard_map.h"
#include "tests/protocol/document.h"

/// The code writes and reads the worked examples of protocol/wire/*.md.
namespace millrace::protocol {
namespace {

std::string hex_of(const ByteBuffer& bytes) {
  std::string text;
  char two[4];
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::snprintf(two, sizeof(two), "%02x%c", bytes[i], i % 8 == 7 ? '\n' : ' ');
    text += two;
  }
  return text;
}

JobSpec smallest_spec() {
  JobSpec spec;
  spec.name = "demo";
  spec.workers = 2;
  spec.tensors.emplace_back();
  spec.tensors[0].name = "w";
  spec.tensors[0].dimension = 16;
  return spec;
}

TEST(WireFormatDocument, TheCodeWritesAndReadsTheWorkedContribution) {
  const SharedBytes payload = SharedBytes::from(documented_bytes("container-example"));
  const Message message{{.job = 1, .epoch = 3, .worker = 1, .incarnation = 1, .shard = 0, .shard_incarnation = 1},
                        Contribution{.part = 0, .step = 7, .payload_hash = container_identity(payload.bytes).value()},
                        payload};
  const ByteBuffer envelope = encode_envelope(message);
  EXPECT_EQ(hex_of(envelope), hex_of(documented_bytes("contribution-example")));
  const auto decoded = decode_message(documented_bytes("contribution-example"), payload, {});
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->header, message.header);
  EXPECT_EQ(decoded->body, message.body);
}

TEST(WireFormatDocument, TheCodeWritesAndReadsTheWorkedJobSpecification) {
  EXPECT_EQ(hex_of(encode_job_spec(smallest_spec())), hex_of(documented_bytes("job-spec-example")));
  const auto decoded = decode_job_spec(documented_bytes("job-spec-example"));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, smallest_spec());
}

TEST(WireFormatDocument, TheCodeComputesTheWorkedHashes) {
  const auto little_endian = [](uint64_t value) {
    ByteBuffer bytes;
    ByteWriter(bytes).put(value);
    return bytes;
  };
  const std::vector<ShardEntry> map = {{"tcp://127.0.0.1:5555", 3}, {"tcp://127.0.0.1:5556", 1}};
  EXPECT_EQ(hex_of(little_endian(shard_map_hash(map))), hex_of(documented_bytes("shard-map-hash-example")));
  EXPECT_EQ(hex_of(little_endian(layout_hash(plan_layout(smallest_spec(), 1)))),
            hex_of(documented_bytes("layout-hash-example")));
  const Update update{.contributors = {{0, 1}, {1, 1}}, .weight_sum = 2, .summary = {}};
  const ByteBuffer payload = documented_bytes("container-example");
  EXPECT_EQ(hex_of(little_endian(extend_log_digest(kLogDigestStart, update, payload))),
            hex_of(documented_bytes("log-digest-example")));
}

TEST(WireFormatDocument, TheWorkedLayoutsAreThoseOfTheRule) {
  constexpr uint32_t kShards = 2;
  JobLayout layout;
  size_t next = 0;
  size_t jobs = 0;
  for (const auto& words : documented_words("layout layout-example")) {
    ASSERT_EQ(words.size(), 3u);
    if (!std::isdigit(static_cast<unsigned char>(words[0][0]))) {
      EXPECT_EQ(next, layout.parts.size()) << "parts of the job before";
      ++jobs;
      JobSpec spec = smallest_spec();
      spec.tensors[0].dimension = std::stoull(words[1]);
      spec.grid.block_indices = static_cast<uint32_t>(std::stoul(words[2]));
      spec.parts_per_shard = 5;
      spec.reproducible = words[0] == "reproducible";
      if (spec.reproducible) spec.reselect = {.reselect = Reselect::kTopK, .k = 100};
      const auto valid = validate(spec);
      EXPECT_TRUE(valid.has_value()) << valid.error().message;
      layout = plan_layout(spec, kShards);
      next = 0;
      continue;
    }
    ASSERT_LT(next, layout.parts.size());
    const PartLayout& part = layout.parts[next++];
    EXPECT_EQ(std::to_string(part.shard) + " " + std::to_string(part.begin) + " " + std::to_string(part.end),
              words[0] + " " + words[1] + " " + words[2]);
  }
  EXPECT_EQ(next, layout.parts.size());
  EXPECT_EQ(jobs, 3u);
}

/// Returns the name under which a heading is linked: lower case, '-' for spaces. All characters but letters, digits,
/// '_' and '-' are dropped.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading.substr(heading.find_first_not_of("# "))) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ') anchor += '-';
    if (std::isalnum(byte) || c == '_' || c == '-') anchor += static_cast<char>(std::tolower(byte));
  }
  return anchor;
}

std::string text_of_document(const std::string& name) {
  std::string text;
  for (const std::string& line : document_lines(name)) text += line + '\n';
  return text;
}

TEST(WireFormatDocument, EveryPageIsListedAndEveryLinkToAHeadingFindsIt) {
  const std::string index = text_of_document("wire/README.md");
  std::map<std::string, std::set<std::string>> anchors;
  for (const std::string& name : wire_documents()) {
    const std::string page = name.substr(name.find('/') + 1);
    const bool is_listed = index.find("| [" + page + "](" + page + ") |") != std::string::npos;
    EXPECT_TRUE(is_listed || page == "README.md") << page;
    for (const std::string& line : document_lines(name)) {
      if (line.starts_with('#')) anchors[page].insert(anchor_of(line));
    }
  }
  const std::regex link("\\]\\(([a-z_0-9A-Z]+\\.md)?#([^)]+)\\)");
  for (const std::string& name : wire_documents()) {
    const std::string page = name.substr(name.find('/') + 1);
    const std::string text = text_of_document(name);
    for (std::sregex_iterator at(text.begin(), text.end(), link); at != std::sregex_iterator(); ++at) {
      const std::string to = (*at)[1].matched ? (*at)[1].str() : page;
      EXPECT_TRUE(anchors[to].contains((*at)[2].str())) << page << ": " << at->str();
    }
  }
}

/// Of the checksum in a container's header.
constexpr size_t kChecksumAt = 56;

TEST(LogDigest, OfAMergedUpdateEqualsThatOfItsSingleSteps) {
  const ByteBuffer one = documented_bytes("container-example");
  ByteBuffer other = one;
  other[kChecksumAt] ^= 1;
  Update merged;
  merged.part = 1;
  merged.step = 8;
  uint64_t expected = 42;
  uint64_t step = 6;
  for (const ByteBuffer& payload : {one, other, one}) {
    Update single;
    single.part = 1;
    single.step = step++;
    single.contributors = {{2, 3}};
    single.weight_sum = static_cast<double>(step) / 4;
    merged.merged.push_back({{2, 3, step}, single.weight_sum, container_identity(payload).value_or(0)});
    expected = extend_log_digest(expected, single, payload);
  }
  EXPECT_EQ(extend_log_digest(42, merged, {}), expected);
  std::swap(merged.merged[0], merged.merged[1]);
  EXPECT_NE(extend_log_digest(42, merged, {}), expected);
}

TEST(LogDigest, DependsOnEverythingThatChangesWeightsAndOnTheOrder) {
  const ByteBuffer one = documented_bytes("container-example");
  ByteBuffer other = one;
  other[kChecksumAt] ^= 1;
  ByteBuffer damaged = one;  // where the checksum does not hold nothing is applied
  damaged.back() ^= 1;
  const Update first{.part = 1, .contributors = {{0, 1}}, .weight_sum = 1, .summary = {}};
  const auto digest = [&](auto change, const ByteBuffer& payload) {
    Update changed = first;
    change(changed);
    return extend_log_digest(kLogDigestStart, changed, payload);
  };
  const std::vector<uint64_t> all = {
      digest([](Update&) {}, one),
      digest([](Update& update) { update.part = 2; }, one),
      digest([](Update& update) { update.step = 1; }, one),
      digest([](Update& update) { update.contributors.push_back({1, 1}); }, one),
      digest([](Update& update) { update.weight_sum = 2; }, one),
      extend_log_digest(1, first, one),
      digest([](Update&) {}, other),
  };
  EXPECT_EQ(std::set<uint64_t>(all.begin(), all.end()).size(), all.size());
  EXPECT_EQ(digest([](Update& update) { update.decided_in = update.stable = 9; }, one), all[0])
      << "what differs when an update is served again does not count";
  EXPECT_EQ(digest([](Update&) {}, damaged), all[0]);
}

TEST(ShardMapHash, LeavesLivesOutAndTellsAddressesAndOrderApart) {
  const std::vector<ShardEntry> map = {{"a", 1}, {"b", 1}};
  EXPECT_EQ(shard_map_hash(map), shard_map_hash(std::vector<ShardEntry>{{"a", 2}, {"b", 9}}));
  EXPECT_NE(shard_map_hash(map), shard_map_hash(std::vector<ShardEntry>{{"b", 1}, {"a", 1}}));
  EXPECT_NE(shard_map_hash(map), shard_map_hash(std::vector<ShardEntry>{{"ab", 1}, {"", 1}}));
  EXPECT_NE(shard_map_hash(map), shard_map_hash(std::vector<ShardEntry>{{"a", 1}}));
}

}  // namespace
}  // namespace millrace::protocol
