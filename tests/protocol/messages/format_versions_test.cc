#include "tests/support/format_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string_view>

#include "protocol/job/job_spec_fields.h"
#include "protocol/messages/frame.h"
#include "protocol/messages/messages.h"
#include "tests/protocol/document.h"
#include "tests/protocol/example_messages.h"

/// Formats that have a version: each is in the list, each is looked at by a test, and the messages' bytes are those of
/// theirs.
namespace millrace::protocol {
namespace {

std::string text_of_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The source files of some folders, by their paths below the root.
std::map<std::string, std::string> format_sources(const std::vector<std::string>& folders) {
  const std::filesystem::path root = source_file("");
  std::map<std::string, std::string> sources;
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cc") continue;
      sources[std::filesystem::relative(entry.path(), root).generic_string()] = text_of_file(entry.path());
    }
  }
  return sources;
}

TEST(FormatVersions, OfMessagesStandForTheSchemaAndItsFrames) {
  millrace::testing::Fingerprint now;
  now.add_source(source_file("protocol/messages/messages.capnp"), "#");
  for (const Message& message : every_message()) {
    // A Hello holds a job specification, which has a version of its own.
    if (!std::holds_alternative<Hello>(message.body)) now.add(encode_envelope(message));
  }
  millrace::testing::expect_format_version("messages", kProtocolVersion, now,
                                           "kProtocolVersion in protocol/messages/messages.h");
  EXPECT_LE(kProtocolVersionMin, kProtocolVersion);
}

/// Adds the names of a specification's fields to a fingerprint. The texts of help are not the format's.
class NamesOfFields {
 public:
  explicit NamesOfFields(millrace::testing::Fingerprint& names) : names_(names) {}

  template <typename T>
  void field(std::string_view name, const T&) {
    names_.add_text(name);
  }
  template <typename T>
  void option(const OptionInfo& info, const T&) {
    names_.add_text(info.name);
  }
  void words(const OptionInfo& info, const std::string&) { names_.add_text(info.name); }
  template <typename T, typename Visit>
  void text(const OptionInfo& info, const T& part, const Visit& visit) {
    group(info.name, part, visit);
  }
  template <typename T, typename Visit>
  void group(std::string_view name, const T& part, const Visit& visit) {
    names_.add_text(name);
    visit(*this, part);
  }
  template <typename T, typename Visit>
  void optional(std::string_view name, const std::optional<T>& part, const Visit& visit) {
    group(name, part.value_or(T{}), visit);
  }

 private:
  millrace::testing::Fingerprint& names_;
};

TEST(FormatVersions, OfTheJobSpecificationStandForItsFields) {
  millrace::testing::Fingerprint now;
  const JobSpec spec = example_spec();
  NamesOfFields names(now);
  fields::visit_job(names, spec);
  fields::visit_tensor(names, spec.tensors.front());
  const ByteBuffer bytes = encode_job_spec(spec);
  now.add(bytes);
  const uint64_t version = bytes[0] + (uint64_t{bytes[1]} << 8);
  millrace::testing::expect_format_version("job_specification", version, now,
                                           "kSpecVersion in protocol/job/job_spec_bytes.cc");
}

TEST(FormatVersions, AreListedInOrderAndEachFormatHasATest) {
  std::map<std::string, uint64_t> last;
  for (const testing::KnownVersion& known : testing::known_versions()) {
    EXPECT_GT(known.version, last[known.format]) << known.format << ": lines are appended, with a larger version";
    last[known.format] = known.version;
  }
  std::set<std::string> tested;
  const std::regex call("expect_format_version\\(\\s*\"(\\w+)\"");
  for (const auto& [path, text] : format_sources({"tests"})) {
    for (std::sregex_iterator at(text.begin(), text.end(), call); at != std::sregex_iterator(); ++at)
      tested.insert((*at)[1]);
  }
  std::set<std::string> listed;
  for (const auto& [format, version] : last) listed.insert(format);
  EXPECT_EQ(listed, tested);
}

TEST(FormatVersions, AreThoseOfTheDocument) {
  std::map<std::string, uint64_t> last;
  for (const testing::KnownVersion& known : testing::known_versions()) last[known.format] = known.version;
  std::map<std::string, uint64_t> documented;
  bool inside = false;
  const std::regex row("\\| ([a-z ]+) \\| (\\d+) \\|.*");
  for (const std::string& line : document_lines("wire/versions.md")) {
    if (line.starts_with("## ")) inside = line == "## Versions";
    std::smatch words;
    if (!inside || !std::regex_match(line, words, row)) continue;
    std::string format = words[1];
    std::ranges::replace(format, ' ', '_');
    documented[format] = std::stoull(words[2]);
  }
  EXPECT_EQ(documented, last);
}

/// Returns the names of a text's constants that have "Version" or "Magic" in them. A std::regex takes seconds for it.
std::vector<std::string> version_constants(std::string_view text) {
  constexpr std::string_view kKeyword = "constexpr ";
  std::vector<std::string> names;
  for (size_t at = text.find(kKeyword); at != text.npos; at = text.find(kKeyword, at + 1)) {
    const std::string_view declaration = text.substr(at, text.find_first_of(";={", at) - at);
    const size_t end = declaration.find_last_not_of(" \n") + 1;
    const std::string_view words = declaration.substr(0, end);
    const std::string_view name = words.substr(words.find_last_of(" \n") + 1);
    if (name.starts_with('k') && !name.ends_with(')') && (name.contains("Version") || name.contains("Magic")))
      names.emplace_back(name);
  }
  return names;
}

TEST(FormatVersions, ConstantsAreFoundByTheirNames) {
  EXPECT_THAT(
      version_constants("constexpr int kVersion = 1; constexpr std::array<char, 4>\n kMagic{1}; int kOldMagic = 2;\n"
                        "constexpr bool is_version(int kMagic); constexpr std::string_view kMagicWord =\n \"a\";"),
      ::testing::ElementsAre("kVersion", "kMagic", "kMagicWord"));
}

/// A constant whose name says that bytes begin with it, or that it counts their versions. A new one needs a line in the
/// list of formats and a test; then it has a place here.
TEST(FormatVersions, NoConstantIsWithoutOne) {
  const std::set<std::string> known = {
      "protocol/container/container.cc kMagic",
      "protocol/container/container.h kContainerVersion",
      "protocol/datagram/header.h kDatagramMagic",
      "protocol/messages/handover_frame.h kHandoverMagic",
      "protocol/table/job_record.cc kRecordVersion",
      "protocol/job/job_spec_bytes.cc kSpecVersion",
      "protocol/messages/messages.h kProtocolVersion",
      "protocol/messages/messages.h kProtocolVersionMin",
      "protocol/table/sqlite_table.cc kSchemaVersion",
      "protocol/table/cluster_notes.h kNotesVersion",
      "server/store/save_format.cc kMagic",
      "worker/training/model/model_file.cc kMagic",
      "worker/training/model/model_file.cc kVersion",
      "worker/training/model/model_file.cc kVersionMin",
      "worker/core/rejoin/saved_state.cc kMagic",
      "worker/core/rejoin/saved_state.cc kVersion",
      "worker/peer/channel/message.cc kMagic",
      "worker/peer/channel/message.cc kVersion",
      "worker/peer/transport/tcp_frame.cc kTcpMagic",
      "worker/peer/transport/tcp_frame.cc kTcpVersion",
      // Formats of others: questions of ZeroMQ's ZAP; ZIP and numpy's arrays, which are only read.
      "protocol/transport/key_gate.cc kZapVersion",
      "worker/bench/kernels/trace.cc kMagic",
      "worker/bench/kernels/trace.cc kMemberMagic",
  };
  std::set<std::string> found;
  for (const auto& [path, text] :
       format_sources({"kernels", "protocol", "monitoring", "server", "switch_agg", "worker"})) {
    for (const std::string& name : version_constants(text)) found.insert(path + " " + name);
  }
  EXPECT_EQ(found, known);
}

}  // namespace
}  // namespace millrace::protocol
