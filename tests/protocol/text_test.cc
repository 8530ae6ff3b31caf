#include "protocol/base/text.h"

#include <gtest/gtest.h>

namespace millrace::protocol {
namespace {

TEST(PlainText, TakesUtf8WithoutControlCharacters) {
  EXPECT_TRUE(is_plain_text(""));
  EXPECT_TRUE(is_plain_text("layer.1/weight ~"));
  EXPECT_TRUE(is_plain_text("\xC2\xA0\xC3\xBC\xE2\x82\xAC\xF0\x9F\x98\x80"));
}

TEST(PlainText, RefusesControlCharactersAndInvalidUtf8) {
  for (const std::string_view bad : {"\n", "a\x7F", "\x1B[31m", "\xC2\x85", "\x80", "\xC0\x80", "\xC3", "\xE0\x80\x80",
                                     "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xFF"}) {
    EXPECT_FALSE(is_plain_text(bad)) << bad;
  }
  EXPECT_FALSE(is_plain_text(std::string_view("\0", 1)));
}

TEST(PlainText, ReplacesUnreadableBytesAndTruncatesAtACharacter) {
  EXPECT_EQ(plain_text_of("no\nway\xFF", 100), "no?way?");
  EXPECT_EQ(plain_text_of("abc", 2), "ab");
  EXPECT_EQ(plain_text_of("a\xE2\x82\xAC", 3), "a");
  EXPECT_EQ(plain_text_of("a\xE2\x82\xAC", 4), "a\xE2\x82\xAC");
}

TEST(PlainText, IsReadBackAsWrittenAndOnlyUpToItsLimit) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  put_text(writer, "name");
  ByteReader reader(bytes);
  EXPECT_EQ(get_text(reader, 4), "name");
  ByteReader again(bytes);
  EXPECT_EQ(get_text(again, 3), std::nullopt);
  ByteReader cut_off(ByteSpan(bytes).first(5));
  EXPECT_EQ(get_text(cut_off, 4), std::nullopt);
}

}  // namespace
}  // namespace millrace::protocol
