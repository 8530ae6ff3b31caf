#include "protocol/table/cluster_notes.h"

#include <gtest/gtest.h>

#include "tests/support/format_versions.h"

namespace millrace::protocol {
namespace {

TEST(ClusterNotes, ADecodedNoteEqualsTheEncodedNote) {
  for (const ProcessNote& note : {ProcessNote{"tcp://a:1", "a:2", "millrace 1"}, ProcessNote{"tcp://a:1", "", ""}})
    EXPECT_EQ(decode_process_note(encode_process_note(note)), note);
  for (const DrainNote& note : {DrainNote{7, ""}, DrainNote{7, "a reason"}})
    EXPECT_EQ(decode_drain_note(encode_drain_note(note), 7), note);
}

TEST(ClusterNotes, AreOfOneStart) { EXPECT_EQ(decode_drain_note(encode_drain_note({7, ""}), 8), std::nullopt); }

TEST(ClusterNotes, LinesThatAreNotPlainTextAreLeftOut) {
  EXPECT_EQ(decode_process_note(encode_process_note({"a\nb", "c", std::string(300, 'x')})), (ProcessNote{"", "c", ""}));
  EXPECT_EQ(decode_drain_note(encode_drain_note({7, "a\x1b[31m"}), 7), (DrainNote{7, ""}));
}

TEST(ClusterNotes, DamagedOnesAndThoseOfAnotherVersionSayNothing) {
  const std::string process = encode_process_note({"a", "b", "c"});
  const std::string drain = encode_drain_note({7, "r"});
  for (const std::string& text :
       {std::string(), std::string("1"), "2" + process.substr(1), process + "\n", process.substr(1)})
    EXPECT_EQ(decode_process_note(text), ProcessNote()) << text;
  for (const std::string& text : {std::string(), std::string("1\n7"), "2" + drain.substr(1), drain + "\n",
                                  std::string("1\n7x\nr"), std::string("1\n\nr"), std::string("1\n-7\nr")})
    EXPECT_EQ(decode_drain_note(text, 7), std::nullopt) << text;
}

TEST(ClusterNotes, TheirBytesAreThoseOfTheirVersion) {
  testing::Fingerprint bytes;
  for (const std::string& text :
       {encode_process_note({"tcp://a:1", "a:2", "millrace 1"}), encode_drain_note({7, "a reason"}), key_of_lease(3),
        key_of_drain(3), key_of_spare(3)})
    bytes.add_text(text);
  testing::expect_format_version("cluster_notes", kNotesVersion, bytes,
                                 "kNotesVersion in protocol/table/cluster_notes.h");
}

}  // namespace
}  // namespace millrace::protocol
