// protocol/vectors/session.json and protocol/wire/session.md: one session, as the production cores of both sides speak.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "tests/protocol/document.h"
#include "tests/protocol/vectors/capnp_json.h"
#include "tests/protocol/vectors/session_run.h"
#include "tests/protocol/vectors/vector_file.h"

namespace millrace::testing {
namespace {

const VectorFile kSessionFile{
    .name = "session.json",
    .format = "messages",
    .version = protocol::kProtocolVersion,
    .change =
        "Raise the version of the format whose bytes changed: kProtocolVersion, kSpecVersion or kContainerVersion "
        "(protocol/wire/versions.md). Where the cores say other things in other bytes of the same form, delete the "
        "file first, and bring protocol/wire/session.md up to date.",
};

/// Two workers join, push one step each, have its update, say that they live, and leave.
SessionRun whole_session() {
  SessionRun run;
  run.connect(0);
  run.connect(1);
  run.push(0, {1, 4, 5}, {1, -2, 0.5F});
  run.push(1, {4, 9}, {1, 0.25F});
  const size_t before = run.frames().size();
  const auto has_heartbeat_of = [&](bool from_worker) {
    return std::any_of(run.frames().begin() + static_cast<std::ptrdiff_t>(before), run.frames().end(),
                       [&](const SessionFrames& frames) {
                         return frames.worker == 0 && frames.from_worker == from_worker && frames.kind == "heartbeat";
                       });
  };
  for (int tick = 0; tick < 100 && !(has_heartbeat_of(true) && has_heartbeat_of(false)); ++tick) {
    run.pass_to_next_deadline();
  }
  run.finish(0);
  run.finish(1);
  return run;
}

/// What worker 0 and the shard say to each other.
VectorJson session_json(const SessionRun& run) {
  VectorJson json = vector_file_head(kSessionFile);
  json["vectors"] = VectorJson::array();
  for (const SessionFrames& frames : run.frames()) {
    if (frames.worker != 0) continue;
    const std::string number = std::to_string(json["vectors"].size() + 1);
    json["vectors"].push_back({{"name", number + " " + frames.kind},
                               {"from", frames.from_worker ? "worker 0" : "shard 0"},
                               {"to", frames.from_worker ? "shard 0" : "worker 0"},
                               {"after_ms", (frames.at - SessionRun::kStart) / kNsPerMs},
                               {"envelope", hex_text(frames.envelope)},
                               {"payload", hex_text(frames.payload)},
                               {"decoded", envelope_json(frames.envelope)}});
  }
  return json;
}

TEST(SessionVectors, TheCoresReproduceTheSession) { expect_vectors(kSessionFile, session_json(whole_session())); }

TEST(SessionVectors, TellAWholeSession) {
  const SessionRun run = whole_session();
  std::vector<std::string> kinds;
  for (const SessionFrames& frames : run.frames()) {
    if (frames.worker == 0) kinds.push_back(frames.kind);
  }
  for (const char* kind :
       {"hello", "welcome", "view_change", "contribution", "update", "ack", "heartbeat", "goodbye"}) {
    EXPECT_THAT(kinds, ::testing::Contains(kind));
  }
  for (uint32_t worker = 0; worker < 2; ++worker) {
    EXPECT_EQ(run.core(worker).phase(), worker::Phase::kFinished) << worker;
    std::vector<float> expected(16, 0.0F);
    expected[1] = 1;
    expected[4] = -1;
    expected[5] = 0.5F;
    expected[9] = 0.25F;
    EXPECT_EQ(run.weights(worker), expected) << worker;
  }
}

/// Returns the bytes of the blocks of session.md that begin with ```hex NAME, one behind the other. '#' begins a
/// comment.
std::map<std::string, std::string> hex_blocks_of_session() {
  std::map<std::string, std::string> blocks;
  std::string block;
  for (const std::string& line : protocol::document_lines("wire/session.md")) {
    EXPECT_LE(line.size(), 120U) << line;
    if (line.starts_with("```hex ")) {
      block = line.substr(7);
      EXPECT_TRUE(blocks.emplace(block, "").second) << "two blocks " << block;
    } else if (line == "```") {
      block.clear();
    } else if (!block.empty()) {
      std::istringstream words(line.substr(0, line.find('#')));
      for (std::string word; words >> word;) blocks[block] += word;
    }
  }
  return blocks;
}

TEST(SessionVectors, AreThoseOfTheDocument) {
  std::map<std::string, std::string> expected;
  const VectorJson file = read_vectors(kSessionFile);
  for (const VectorJson& vector : file.at("vectors")) {
    std::string name = vector.at("name").get<std::string>();
    std::ranges::replace(name, ' ', '-');
    std::ranges::replace(name, '_', '-');
    expected[name + "-envelope"] = vector.at("envelope").get<std::string>();
    if (!vector.at("payload").get<std::string>().empty()) {
      expected[name + "-payload"] = vector.at("payload").get<std::string>();
    }
  }
  EXPECT_EQ(hex_blocks_of_session(), expected);
}

}  // namespace
}  // namespace millrace::testing
