#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "protocol/keys/allowed_keys.h"
#include "protocol/keys/key.h"
#include "protocol/keys/key_files.h"

namespace millrace::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class KeyFolder : public ::testing::Test {
 protected:
  KeyFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "millrace-keys-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~KeyFolder() override { std::filesystem::remove_all(path_); }

  std::string file(const std::string& name, const std::string& text, mode_t mode) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  static mode_t mode_of(const std::string& path) {
    struct stat status{};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  }
  static std::string text_of_file(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string path_;
};

TEST(KeyText, EachKindReadsBackItsOwnTextAndNotTheOther) {
  const KeyPair pair = draw_key_pair();
  EXPECT_EQ(public_key_of_text(public_key_text(pair.public_key))->key, pair.public_key);
  EXPECT_FALSE(public_key_of_text(public_key_text(pair.public_key))->end);
  EXPECT_EQ(secret_key_of_text(secret_key_text(pair.secret))->bytes(), pair.secret.bytes());
  EXPECT_EQ(key_pair_of(pair.secret).public_key, pair.public_key);
  EXPECT_FALSE(public_key_of_text(secret_key_text(pair.secret)));
  EXPECT_FALSE(secret_key_of_text(public_key_text(pair.public_key)));
  EXPECT_EQ(key_of_digits(key_digits(pair.public_key)), pair.public_key);
}

TEST(KeyText, TheEndOfAKeyIsADay) {
  const PublicKey key = draw_key_pair().public_key;
  for (const char* day : {"2000-01-01", "2027-11-29", "2028-02-29", "9999-12-31"}) {
    const KeyEnd end = key_end_of_text(day);
    ASSERT_TRUE(end) << day;
    EXPECT_EQ(key_end_text(*end), day);
    const auto dated = public_key_of_text(public_key_text(key, end));
    ASSERT_TRUE(dated) << day;
    EXPECT_EQ(dated->key, key);
    EXPECT_EQ(dated->end, end);
  }
  EXPECT_EQ(std::chrono::sys_seconds(*key_end_of_text("2027-11-29")).time_since_epoch().count(), 1'827'446'400);
  for (const char* wrong : {"", "2027-11-31", "2027-02-29", "2027-13-01", "2027-00-10", "1999-12-31", "10000-01-01",
                            "2027-1-1", "2027/11/29", "2027-11-29 ", "+027-11-29", "2027--1-29", "tomorrow  "}) {
    EXPECT_FALSE(key_end_of_text(wrong)) << wrong;
    EXPECT_FALSE(dated_key_of_digits(key_digits(key) + " until " + wrong)) << wrong;
  }
}

TEST(KeyText, EveryOtherTextIsRefused) {
  const std::string without_end = public_key_text(draw_key_pair().public_key);
  const std::string with_end = public_key_text(draw_key_pair().public_key, key_end_of_text("2027-11-29"));
  for (const std::string& text : {without_end, with_end}) {
    const size_t digits_end = without_end.size() - 1;
    for (size_t length = 0; length + 1 < text.size(); ++length) {
      if (length == digits_end) continue;  // the text of a key without an end
      EXPECT_FALSE(public_key_of_text(text.substr(0, length))) << length;
    }
    for (size_t at = 0; at < text.size(); ++at) {
      std::string changed = text;
      changed[at] = 'z';
      EXPECT_FALSE(public_key_of_text(changed)) << at;
    }
    EXPECT_FALSE(public_key_of_text(text + "\n"));
    EXPECT_FALSE(public_key_of_text(" " + text));
  }
  EXPECT_FALSE(public_key_of_text("millrace-public-key " + std::string(64, '0') + "\n")) << "no key at all";
  EXPECT_FALSE(secret_key_of_text("millrace-secret-key " + std::string(64, '0') + "\n"));
}

TEST(KeyText, NamesAreSafeInFilesAndLogs) {
  for (const char* name : {"a", "worker-0", "Node_1.example", "0"}) EXPECT_EQ(refuse_key_name(name), "") << name;
  for (const std::string& name : {std::string(), std::string("."), std::string("../x"), std::string("a/b"),
                                  std::string("-a"), std::string("a b"), std::string("\xc3\xa4"), std::string(65, 'a')})
    EXPECT_NE(refuse_key_name(name), "") << name;
}

TEST_F(KeyFolder, NewKeysHaveStrictModesAndReplaceNothing) {
  const mode_t before = ::umask(0);
  const auto files = write_new_keys(path_ + "/keys", "worker-0");
  ::umask(before);
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_EQ(mode_of(path_ + "/keys"), 0700U);
  EXPECT_EQ(mode_of(files->secret_path), 0600U);
  EXPECT_EQ(mode_of(files->public_path), 0644U);
  const auto pair = read_secret_key(files->secret_path);
  ASSERT_TRUE(pair) << pair.error().message;
  EXPECT_EQ(read_public_key(files->public_path).value(), pair->public_key);

  const std::string secret = text_of_file(files->secret_path);
  const auto again = write_new_keys(path_ + "/keys", "worker-0");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kIo);
  EXPECT_THAT(again.error().message, HasSubstr("exists"));
  std::filesystem::remove(files->public_path);
  EXPECT_FALSE(write_new_keys(path_ + "/keys", "worker-0"));
  EXPECT_FALSE(std::filesystem::exists(files->public_path)) << "half a pair was left";
  EXPECT_EQ(text_of_file(files->secret_path), secret);
  EXPECT_EQ(write_new_keys(path_, "../x").error().code, ErrorCode::kInvalidArgument);
}

TEST_F(KeyFolder, ASecretMayBeReadByItsGroupAtMost) {
  const std::string text = secret_key_text(draw_key_pair().secret);
  for (const mode_t mode : {0600U, 0400U, 0440U, 0640U})
    EXPECT_TRUE(read_secret_key(file("good.key", text, mode))) << std::oct << mode;
  for (const mode_t mode : {0644U, 0604U, 0602U, 0660U, 0666U, 0601U}) {
    const auto read = read_secret_key(file("open.key", text, mode));
    ASSERT_FALSE(read) << std::oct << mode;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(read.error().message, HasSubstr("chmod 600"));
  }
}

TEST_F(KeyFolder, NoUserMayLetAKeyInByAFileThatAllMayWrite) {
  const PublicKey key = draw_key_pair().public_key;
  const std::string path = file("one.pub", public_key_text(key), 0664);
  const std::string list = file("list", "one " + key_digits(key) + "\n", 0664);
  EXPECT_TRUE(AllowedKeys::read(path_));
  EXPECT_TRUE(AllowedKeys::read(list));
  ::chmod(path.c_str(), 0666);
  ::chmod(list.c_str(), 0646);
  EXPECT_THAT(AllowedKeys::read(path_)->problems(), ElementsAre(HasSubstr("chmod o-w " + path)));
  EXPECT_EQ(AllowedKeys::read(path_)->count(), 0U);
  EXPECT_THAT(AllowedKeys::read(list).error().message, HasSubstr("chmod o-w " + list));
  ::chmod(list.c_str(), 0644);
  ::chmod(path_.c_str(), 0777);
  EXPECT_THAT(AllowedKeys::read(path_).error().message, HasSubstr("chmod o-w " + path_)) << "a file can be added";
  ::chmod(path_.c_str(), 0700);
  if (::geteuid() != 0) return;  // another owner is root's to give
  ASSERT_EQ(::chown(path_.c_str(), 12'345, static_cast<gid_t>(-1)), 0);
  EXPECT_THAT(AllowedKeys::read(path_).error().message, HasSubstr("belongs to user 12345"));
  ASSERT_EQ(::chown(list.c_str(), 12'345, static_cast<gid_t>(-1)), 0);
  EXPECT_THAT(AllowedKeys::read(list).error().message, HasSubstr("belongs to user 12345"));
  ASSERT_EQ(::chown(path_.c_str(), 0, static_cast<gid_t>(-1)), 0);
  ASSERT_EQ(::mkfifo((path_ + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(AllowedKeys::read(path_ + "/pipe").error().message, HasSubstr("not a file")) << "and it did not wait";
}

TEST_F(KeyFolder, ErrorsOfWrongKeyFilesRevealNoSecret) {
  const KeyPair pair = draw_key_pair();
  const std::string secret = file("a.key", secret_key_text(pair.secret), 0600);
  const std::string open = file("a.pub", public_key_text(pair.public_key), 0644);
  EXPECT_THAT(read_public_key(secret).error().message, HasSubstr("it has a secret key"));
  EXPECT_THAT(read_public_key(secret).error().message, Not(HasSubstr(secret_key_text(pair.secret).substr(20, 16))));
  EXPECT_THAT(read_secret_key(open).error().message, HasSubstr("all users may read"));
  ::chmod(open.c_str(), 0600);
  EXPECT_THAT(read_secret_key(open).error().message, HasSubstr("it has a public key"));
  EXPECT_EQ(read_secret_key(path_ + "/missing").error().code, ErrorCode::kIo);
  EXPECT_EQ(read_secret_key(path_).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_secret_key(file("long", secret_key_text(pair.secret) + std::string(500, 'a'), 0600)).error().code,
            ErrorCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo((path_ + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(read_secret_key(path_ + "/pipe").error().message, HasSubstr("not a file"));
}

TEST_F(KeyFolder, AFolderAllowsItsPublicKeysByTheirNames) {
  ASSERT_TRUE(write_new_keys(path_, "one"));
  ASSERT_TRUE(write_new_keys(path_, "two"));
  file("notes.txt", "not a key", 0644);
  file(".hidden.pub", "not a key", 0644);
  const auto allowed = AllowedKeys::read(path_);
  ASSERT_TRUE(allowed) << allowed.error().message;
  EXPECT_EQ(allowed->count(), 2U);
  EXPECT_EQ(*allowed->name_of(read_public_key(path_ + "/two.pub").value()), "two");
  EXPECT_EQ(allowed->name_of(draw_key_pair().public_key), nullptr);
  // As an orchestrator mounts a secret: files are links into a hidden folder.
  std::filesystem::create_directory(path_ + "/..data");
  std::filesystem::rename(path_ + "/one.pub", path_ + "/..data/one.pub");
  std::filesystem::create_symlink("..data/one.pub", path_ + "/one.pub");
  EXPECT_EQ(AllowedKeys::read(path_)->count(), 2U);

  // A wrong file takes no other key's right, and gives none.
  file("zwei.pub", text_of_file(path_ + "/two.pub"), 0644);
  file("three.pub", "damaged", 0644);
  const auto some = AllowedKeys::read(path_);
  ASSERT_TRUE(some);
  EXPECT_EQ(some->count(), 2U);
  EXPECT_EQ(*some->name_of(read_public_key(path_ + "/two.pub").value()), "two") << "the earlier name";
  EXPECT_THAT(some->problems(), ElementsAre(HasSubstr("three.pub"), HasSubstr("also that of two")));
  const auto others = AllowedKeys::read(path_, read_public_key(path_ + "/two.pub").value());
  EXPECT_EQ(others->count(), 1U) << "the own key is no worker's";
  EXPECT_EQ(others->key_of("two"), nullptr);
  EXPECT_EQ(AllowedKeys::read(path_ + "/no").error().code, ErrorCode::kIo);
}

TEST_F(KeyFolder, AKeyThatHasEndedIsTakenAway) {
  const KeyEnd end = key_end_of_text("2027-11-29");
  ASSERT_TRUE(write_new_keys(path_, "guest", end));
  ASSERT_TRUE(write_new_keys(path_, "later", key_end_of_text("2027-12-24")));
  ASSERT_TRUE(write_new_keys(path_, "own", key_end_of_text("2027-01-01")));
  ASSERT_TRUE(write_new_keys(path_, "worker"));
  const PublicKey own = read_public_key(path_ + "/own.pub").value();
  auto allowed = AllowedKeys::read(path_, own);
  ASSERT_TRUE(allowed);
  EXPECT_EQ(allowed->first_end(), key_end_of_text("2027-01-01")) << "that of the reader's own key counts";
  EXPECT_TRUE(allowed->end_keys(*end - std::chrono::days(1)).empty());
  EXPECT_EQ(allowed->count(), 3U);
  const std::vector<EndedKey> ended = allowed->end_keys(*end);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].sentence, "key 'guest' was allowed until 2027-11-29");
  EXPECT_EQ(ended[0].name, "guest");
  EXPECT_TRUE(allowed->end_keys(*end).empty()) << "once";
  EXPECT_EQ(allowed->key_of("guest"), nullptr);
  EXPECT_EQ(allowed->count(), 2U);
  EXPECT_THAT(allowed->problems(), ElementsAre()) << "its file is not wrong";

  const PublicKey two = draw_key_pair().public_key;
  const std::string lines = "one " + key_digits(own) + "\ntwo " + key_digits(two) + " until 2027-11-29\n";
  auto list = AllowedKeys::read(file("list", lines, 0644), two);
  ASSERT_TRUE(list) << list.error().message;
  EXPECT_EQ(list->first_end(), end);
  EXPECT_EQ(list->end_keys(*end + std::chrono::days(400)).size(), 1U);
  EXPECT_EQ(list->name_of(two), nullptr);
  EXPECT_EQ(list->first_end(), end) << "that of the reader's own key";
}

TEST_F(KeyFolder, AnErrorThatMayPassTakesNoKeyAway) {
  ASSERT_TRUE(write_new_keys(path_, "one"));
  std::filesystem::create_symlink("nothing.pub", path_ + "/gone.pub");
  EXPECT_THAT(AllowedKeys::read(path_)->problems(), ElementsAre(HasSubstr("gone.pub")));
  std::filesystem::create_symlink("loop.pub", path_ + "/loop.pub");  // stands for an error of the disk
  const auto read = AllowedKeys::read(path_);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kIo);
}

TEST_F(KeyFolder, AListAllowsItsLines) {
  const PublicKey one = draw_key_pair().public_key;
  const PublicKey two = draw_key_pair().public_key;
  const std::string list = "# workers\n\none " + key_digits(one) + "\r\ntwo " + key_digits(two);
  const auto allowed = AllowedKeys::read(file("list", list, 0644));
  ASSERT_TRUE(allowed) << allowed.error().message;
  EXPECT_EQ(*allowed->name_of(one), "one");
  EXPECT_EQ(*allowed->key_of("two"), two);
  for (const std::string& wrong :
       {std::string("one"), std::string("one "), std::string("one 12"), "one  " + key_digits(one), key_digits(one),
        "a/b " + key_digits(one), "one " + key_digits(one) + "\nuno " + key_digits(one),
        "one " + key_digits(one) + "\none " + key_digits(two), "one " + std::string(64, '0'),
        "one " + key_digits(one) + " until", "one " + key_digits(one) + " until 2027-02-30"}) {
    const auto refused = AllowedKeys::of_list(wrong, "list");
    ASSERT_FALSE(refused) << wrong;
    EXPECT_THAT(refused.error().message, HasSubstr("line ")) << wrong;
  }
  EXPECT_EQ(AllowedKeys::of_list("", "list")->count(), 0U);
}

}  // namespace
}  // namespace millrace::protocol
