// Keys, MACs, the replay window, the handshake's derivations, key files.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <numeric>
#include <set>
#include <vector>

#include "kernels/base/random.h"
#include "protocol/datagram/extensions.h"
#include "protocol/datagram/io/job_key_file.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/replay_window.h"
#include "tests/protocol/temporary_directory.h"

namespace millrace::protocol {
namespace {

JobKey job_key(uint8_t first) {
  JobKey key;
  std::iota(key.begin(), key.end(), first);
  return key;
}

Nonce datagram_key_nonce_of(uint8_t first) {
  Nonce nonce;
  std::iota(nonce.begin(), nonce.end(), first);
  return nonce;
}

KeyScope datagram_key_example_scope(KeyUse use = KeyUse::kWorkerToAggregator) {
  return {.use = use,
          .job = 7,
          .incarnation = 0x1122334455667788,
          .worker = 3,
          .worker_nonce = datagram_key_nonce_of(1),
          .aggregator_nonce = datagram_key_nonce_of(101)};
}

ByteBuffer some_bytes(size_t count) {
  ByteBuffer bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(i * 31 + 7);
  return bytes;
}

TEST(DatagramKey, VerifiesASignatureOfTheSameKeyAtEveryLength) {
  for (const KeyScope& scope : {datagram_key_example_scope(), KeyScope::handshake(7, 3), KeyScope::to_all(7, 5)}) {
    const DatagramKey one(job_key(0), scope);
    const DatagramKey other(job_key(0), scope);
    for (size_t length = 0; length < 300; ++length) {
      const ByteBuffer bytes = some_bytes(length);
      EXPECT_TRUE(other.verify(bytes, 9, one.sign(bytes, 9))) << length;
    }
    for (const size_t length : {1383, 1384, 1456, 8956}) {
      const ByteBuffer bytes = some_bytes(length);
      EXPECT_TRUE(other.verify(bytes, 9, one.sign(bytes, 9))) << length;
    }
  }
}

TEST(DatagramKey, EveryFlippedBitIsFound) {
  const ByteBuffer bytes = some_bytes(150);
  for (const KeyScope& scope : {datagram_key_example_scope(), KeyScope::handshake(7, 3)}) {
    const DatagramKey key(job_key(0), scope);
    const Mac mac = key.sign(bytes, 9);
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      ByteBuffer changed = bytes;
      changed[bit / 8] = static_cast<uint8_t>(changed[bit / 8] ^ 1 << (bit % 8));
      EXPECT_FALSE(key.verify(changed, 9, mac)) << bit;
    }
    for (size_t bit = 0; bit < mac.size() * 8; ++bit) {
      Mac changed = mac;
      changed[bit / 8] = static_cast<uint8_t>(changed[bit / 8] ^ 1 << (bit % 8));
      EXPECT_FALSE(key.verify(bytes, 9, changed)) << bit;
    }
    const ByteBuffer shorter(bytes.begin(), bytes.end() - 1);
    EXPECT_FALSE(key.verify(shorter, 9, mac));
    for (size_t length = 0; length < mac.size(); ++length) {
      EXPECT_FALSE(key.verify(bytes, 9, ByteSpan(mac).first(length))) << "a MAC of " << length << " bytes";
    }
  }
}

TEST(DatagramKey, AnotherSequenceIsAnotherMacInASessionAndTheSameInAHandshake) {
  const ByteBuffer bytes = some_bytes(100);
  const DatagramKey session(job_key(0), datagram_key_example_scope());
  const Mac mac = session.sign(bytes, 9);
  EXPECT_FALSE(session.verify(bytes, 10, mac));
  EXPECT_FALSE(session.verify(bytes, uint64_t{9} << 32, mac));
  const DatagramKey handshake(job_key(0), KeyScope::handshake(7, 3));
  EXPECT_EQ(handshake.sign(bytes, 9), handshake.sign(bytes, 10));
}

TEST(DatagramKey, EverythingThatItDerivesFromMakesAnotherKey) {
  const ByteBuffer bytes = some_bytes(100);
  std::set<Mac> macs;
  const auto add = [&](const JobKey& key, const KeyScope& scope) {
    macs.insert(DatagramKey(key, scope).sign(bytes, 9));
  };
  add(job_key(0), datagram_key_example_scope());
  add(job_key(1), datagram_key_example_scope());
  for (const KeyUse use : {KeyUse::kAggregatorToWorker, KeyUse::kAggregatorToAll, KeyUse::kHandshake}) {
    add(job_key(0), datagram_key_example_scope(use));
  }
  KeyScope scope = datagram_key_example_scope();
  scope.job = 8;
  add(job_key(0), scope);
  scope = datagram_key_example_scope();
  scope.incarnation ^= uint64_t{1} << 63;
  add(job_key(0), scope);
  scope = datagram_key_example_scope();
  scope.worker = 4;
  add(job_key(0), scope);
  scope = datagram_key_example_scope();
  scope.worker_nonce[15] ^= 1;
  add(job_key(0), scope);
  scope = datagram_key_example_scope();
  scope.aggregator_nonce[0] ^= 1;
  add(job_key(0), scope);
  scope = datagram_key_example_scope();
  std::swap(scope.worker_nonce, scope.aggregator_nonce);
  add(job_key(0), scope);
  EXPECT_EQ(macs.size(), 11u);
}

TEST(DatagramKey, SealsADatagramAndLeavesItsPayloadUnchanged) {
  const DatagramKey key(job_key(0), datagram_key_example_scope());
  DatagramHeader header;
  header.type = DatagramType::kContribution;
  header.sequence = 5;
  header.payload_bytes = 11;
  header.extension_words = 1;
  ByteBuffer packet = some_bytes(200);
  ASSERT_EQ(key.seal(header, packet), 64u + 8 + 11 + 16);
  const auto datagram = parse_datagram(ByteSpan(packet).first(99));
  ASSERT_TRUE(datagram);
  EXPECT_EQ(datagram->header, header);
  EXPECT_TRUE(key.verify(*datagram));
  const ByteBuffer before = some_bytes(200);
  EXPECT_TRUE(std::equal(packet.begin() + 64, packet.begin() + 83, before.begin() + 64));
  EXPECT_TRUE(std::equal(packet.begin() + 99, packet.end(), before.begin() + 99)) << "nothing behind it";
}

TEST(DatagramKey, AKeyDerivedInPlaceEqualsAConstructedKey) {
  const ByteBuffer bytes = some_bytes(64);
  DatagramKey key;
  for (const KeyScope& scope : {datagram_key_example_scope(), KeyScope::handshake(7, 3), KeyScope::to_all(7, 5)}) {
    key.derive(job_key(0), scope);
    EXPECT_EQ(key.sign(bytes, 4), DatagramKey(job_key(0), scope).sign(bytes, 4));
  }
}

TEST(DatagramKey, CanBeMoved) {
  DatagramKey key(job_key(0), datagram_key_example_scope());
  const ByteBuffer bytes = some_bytes(64);
  const Mac mac = key.sign(bytes, 1);
  DatagramKey moved(std::move(key));
  EXPECT_TRUE(moved.verify(bytes, 1, mac));
  moved = DatagramKey(job_key(1), datagram_key_example_scope());
  EXPECT_FALSE(moved.verify(bytes, 1, mac));
}

TEST(Nonces, AChallengeIsAFunctionOfAllThatItIsAnsweredTo) {
  const auto of = [](uint8_t key, uint32_t job, uint64_t incarnation, uint16_t worker, uint8_t nonce,
                     uint64_t sessions) {
    return challenge_nonce(job_key(key), job, incarnation, worker, datagram_key_nonce_of(nonce), sessions);
  };
  EXPECT_EQ(of(0, 7, 5, 3, 1, 0), of(0, 7, 5, 3, 1, 0));
  const std::set<Nonce> different = {of(0, 7, 5, 3, 1, 0), of(1, 7, 5, 3, 1, 0), of(0, 8, 5, 3, 1, 0),
                                     of(0, 7, 6, 3, 1, 0), of(0, 7, 5, 4, 1, 0), of(0, 7, 5, 3, 2, 0),
                                     of(0, 7, 5, 3, 1, 1)};
  EXPECT_EQ(different.size(), 7u);
}

TEST(Nonces, RandomOnesDiffer) { EXPECT_NE(random_nonce(), random_nonce()); }

/// An aggregator's side of the handshake, as protocol/wire/datagram_keys.md says it.
class Door {
 public:
  Nonce answer(const Nonce& worker_nonce) const { return nonce(worker_nonce, sessions_); }
  /// Whether the HELLO is taken.
  bool hello(ByteSpan packet) {
    const auto datagram = parse_datagram(packet);
    const auto hello = datagram ? read_hello(datagram->extension) : std::nullopt;
    if (!hello || datagram->header.sequence == 0) return false;
    if (session_ && current_ == hello->worker_nonce) {
      return session_->verify(*datagram) && replay_.accept(datagram->header.sequence);
    }
    DatagramKey key(job_key(0), scope(hello->worker_nonce, nonce(hello->worker_nonce, sessions_)));
    if (!key.verify(*datagram)) return false;
    session_ = std::move(key);
    current_ = hello->worker_nonce;
    ++sessions_;
    replay_ = {};
    return replay_.accept(datagram->header.sequence);
  }
  static KeyScope scope(const Nonce& worker, const Nonce& aggregator) {
    return {.use = KeyUse::kWorkerToAggregator,
            .job = 7,
            .incarnation = 5,
            .worker = 3,
            .worker_nonce = worker,
            .aggregator_nonce = aggregator};
  }

 private:
  static Nonce nonce(const Nonce& worker_nonce, uint64_t sessions) {
    return challenge_nonce(job_key(0), 7, 5, 3, worker_nonce, sessions);
  }

  std::optional<DatagramKey> session_;
  Nonce current_{};
  uint64_t sessions_ = 0;
  ReplayWindow replay_;
};

ByteBuffer hello_packet(const Nonce& worker, const Nonce& aggregator, uint64_t sequence) {
  ByteBuffer packet(2048);
  DatagramHeader header;
  header.type = DatagramType::kHello;
  header.sequence = sequence;
  header.extension_words =
      static_cast<uint8_t>(put_hello({.worker_nonce = worker, .slots = 2}, std::span(packet).subspan(64)) / 8);
  packet.resize(DatagramKey(job_key(0), Door::scope(worker, aggregator)).seal(header, packet));
  return packet;
}

TEST(Handshake, ASecondSessionLocksTheFirstOut) {
  Door door;
  const ByteBuffer first = hello_packet(datagram_key_nonce_of(1), door.answer(datagram_key_nonce_of(1)), 1);
  EXPECT_TRUE(door.hello(first));
  EXPECT_FALSE(door.hello(first)) << "a replay within the session";
  const ByteBuffer again =
      hello_packet(datagram_key_nonce_of(1), challenge_nonce(job_key(0), 7, 5, 3, datagram_key_nonce_of(1), 0), 2);
  EXPECT_TRUE(door.hello(again)) << "the session continues under its key";
  const ByteBuffer second = hello_packet(datagram_key_nonce_of(50), door.answer(datagram_key_nonce_of(50)), 1);
  EXPECT_TRUE(door.hello(second));
  EXPECT_FALSE(door.hello(first)) << "a replay of the session before";
  EXPECT_FALSE(door.hello(again));
  EXPECT_FALSE(door.hello(second));
}

TEST(Handshake, ChallengeRequestsBetweenChangeNothing) {
  Door door;
  const Nonce answer = door.answer(datagram_key_nonce_of(1));
  for (uint8_t n = 2; n < 20; ++n) EXPECT_NE(door.answer(datagram_key_nonce_of(n)), answer);
  EXPECT_EQ(door.answer(datagram_key_nonce_of(1)), answer);
  EXPECT_TRUE(door.hello(hello_packet(datagram_key_nonce_of(1), answer, 1)));
}

TEST(Handshake, AHelloUnderAMadeUpNonceIsRefused) {
  Door door;
  EXPECT_FALSE(door.hello(hello_packet(datagram_key_nonce_of(1), datagram_key_nonce_of(2), 1)));
}

/// The obvious oracle: everything remembered.
class Remembering {
 public:
  bool accept(uint64_t sequence) {
    if (sequence == 0 || sequence + ReplayWindow::kWidth <= highest_ || !seen_.insert(sequence).second) return false;
    highest_ = std::max(highest_, sequence);
    return true;
  }

 private:
  std::set<uint64_t> seen_;
  uint64_t highest_ = 0;
};

TEST(ReplayWindow, InOrderOldRepeatedAndJumps) {
  ReplayWindow window;
  EXPECT_FALSE(window.accept(0));
  for (uint64_t s = 1; s <= 5000; ++s) {
    EXPECT_TRUE(window.accept(s));
    EXPECT_FALSE(window.accept(s));
  }
  EXPECT_FALSE(window.accept(5000 - 2047)) << "seen";
  EXPECT_FALSE(window.accept(5000 - 2048)) << "too old";
  EXPECT_TRUE(window.accept(6000)) << "a jump within the window";
  EXPECT_FALSE(window.accept(4000));
  for (uint64_t s = 5001; s < 6000; ++s) EXPECT_TRUE(window.accept(s)) << s;
  EXPECT_TRUE(window.accept(1'000'000)) << "a jump over it";
  EXPECT_TRUE(window.accept(1'000'000 - 2047)) << "the oldest that is taken";
  EXPECT_FALSE(window.accept(1'000'000 - 2048));
  EXPECT_TRUE(window.accept(~uint64_t{0}));
  EXPECT_TRUE(window.accept(~uint64_t{0} - 2047));
  EXPECT_FALSE(window.accept(~uint64_t{0} - 2048));
  EXPECT_FALSE(window.accept(1));
}

TEST(ReplayWindow, AgreesWithOneThatRemembersEverything) {
  for (const uint64_t spread : {1, 10, 2000, 2048, 5000}) {
    RandomSequence random(RandomKey::from(spread));
    ReplayWindow window;
    Remembering oracle;
    uint64_t at = 1;
    for (int i = 0; i < 20'000; ++i) {
      at += random.next_below(spread);
      const uint64_t back = random.next_below(2 * spread + 3);
      const uint64_t sequence = at > back ? at - back : 0;
      ASSERT_EQ(window.accept(sequence), oracle.accept(sequence)) << spread << " " << i << " " << sequence;
    }
  }
}

/// Computes the losses in the obvious way: every number between the first and the last but three that has not come,
/// each once.
TEST(ReplayWindow, ReportsEachLostSequenceOnce) {
  for (const uint64_t loss : {2, 10, 100}) {
    RandomSequence random(RandomKey::from(loss));
    ReplayWindow window;
    std::set<uint64_t> come;
    std::set<uint64_t> told;
    const uint64_t begin = 1000;
    uint64_t highest = 0;
    std::vector<uint64_t> late;
    for (uint64_t sequence = begin; sequence < begin + 5000; ++sequence) {
      if (sequence > begin && random.next_below(loss) == 0) continue;
      if (sequence > begin && random.next_below(20) == 0) {
        late.push_back(sequence);  // behind the next one
        continue;
      }
      late.insert(late.begin(), sequence);
      for (const uint64_t one : late) {
        EXPECT_TRUE(window.accept(one));
        come.insert(one);
        highest = std::max(highest, one);
      }
      late.clear();
      for (LostSequences lost = window.take_lost(); lost.first != 0; lost = window.take_lost()) {
        EXPECT_TRUE(told.insert(lost.first).second);
        for (uint64_t i = 0; i < 64; ++i) {
          if ((lost.others >> i & 1) == 0) continue;
          EXPECT_TRUE(told.insert(lost.first + 1 + i).second);
        }
      }
      // A reported number has not come. Each number that has not come is reported once three later numbers have.
      for (uint64_t one = highest > 200 ? highest - 200 : 1; one + 3 <= highest; ++one) {
        if (one < begin || come.contains(one)) continue;
        EXPECT_TRUE(told.contains(one)) << one << " of " << highest;
      }
    }
    for (const uint64_t one : told) EXPECT_GE(one, begin);
    EXPECT_GT(told.size(), 4000 / loss / 2);
  }
}

TEST(ReplayWindow, ReportedLossArrivesLate_TwiceAsManyLaterPacketsRequired) {
  ReplayWindow window;
  uint64_t next = 1;
  for (uint64_t later = 3; later < 2000; later *= 2) {
    EXPECT_TRUE(window.accept(next));
    const uint64_t missing = next + 1;
    const uint64_t enough = std::min<uint64_t>(later, 256);
    for (uint64_t i = 1; i <= enough; ++i) {
      EXPECT_TRUE(window.accept(missing + i));
      EXPECT_EQ(window.take_lost().first, i == enough ? missing : 0) << later;
    }
    EXPECT_TRUE(window.accept(missing));
    next = missing + enough + 1;
  }
}

TEST(ReplayWindow, AJumpOverTheWindowTellsNoMoreThanTheWindow) {
  ReplayWindow window;
  EXPECT_TRUE(window.accept(1));
  EXPECT_EQ(window.take_lost(), LostSequences{});
  EXPECT_TRUE(window.accept(~uint64_t{0}));
  uint64_t count = 0;
  for (LostSequences lost = window.take_lost(); lost.first != 0; lost = window.take_lost()) {
    count += 1 + static_cast<uint64_t>(std::popcount(lost.others));
  }
  EXPECT_GE(count, ReplayWindow::kWidth - 8);
  EXPECT_LE(count, ReplayWindow::kWidth);
}

class JobKeyFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text, mode_t mode = 0600) {
    const std::string path = folder_.file("key");
    std::ofstream(path, std::ios::trunc) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  Error error_of(const std::string& text, mode_t mode = 0600) {
    const auto key = read_job_key(write(text, mode));
    EXPECT_FALSE(key) << text;
    return key ? Error{} : key.error();
  }

  TemporaryDirectory folder_;
  const std::string digits_ = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
};

TEST_F(JobKeyFile, IsReadWithAndWithoutItsNewline) {
  const auto key = read_job_key(write(digits_ + "\n"));
  ASSERT_TRUE(key) << key.error().message;
  EXPECT_EQ(*key, job_key(0));
  for (const mode_t mode : {0400, 0440, 0640}) EXPECT_TRUE(read_job_key(write(digits_, mode))) << mode;
}

TEST_F(JobKeyFile, IsWrittenForItsOwnerAloneAndNeverReplaced) {
  const mode_t before = ::umask(0);
  const auto path = write_new_job_key(folder_.file("keys"), 7);
  const auto other = write_new_job_key(folder_.file("keys"), 8);
  ::umask(before);
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_EQ(*path, folder_.file("keys") + "/7.key");
  struct stat status{};
  ASSERT_EQ(::stat(path->c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  const auto key = read_job_key(*path);
  ASSERT_TRUE(key) << key.error().message;
  EXPECT_NE(*key, read_job_key(other.value()).value());
  const auto again = write_new_job_key(folder_.file("keys"), 7);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find("exists"), std::string::npos) << again.error().message;
  EXPECT_EQ(read_job_key(*path).value(), *key);
  EXPECT_EQ(write_new_job_key(folder_.file("no/such"), 7).error().code, ErrorCode::kIo);
}

TEST_F(JobKeyFile, ThatOthersMayReadOrWriteIsRefusedWithWhatToDo) {
  for (const mode_t mode : {0604, 0620, 0660, 0602, 0601, 0777}) {
    const Error error = error_of(digits_ + "\n", mode);
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << mode;
    EXPECT_NE(error.message.find("chmod 600"), std::string::npos) << error.message;
  }
}

TEST_F(JobKeyFile, OfOtherBytesIsRefusedWithoutShowingThem) {
  for (const std::string& text :
       {std::string(), std::string("\n"), digits_.substr(1) + "\n", digits_ + "0\n", digits_ + "\n\n", digits_ + "\r\n",
        " " + digits_, digits_.substr(1) + "g", digits_ + digits_}) {
    const Error error = error_of(text);
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << text;
    EXPECT_EQ(error.message.find("0203"), std::string::npos) << error.message;
  }
}

TEST_F(JobKeyFile, ThatIsNotThereIsAnErrorOfTheSystem) {
  const auto key = read_job_key(folder_.file("nothing"));
  ASSERT_FALSE(key);
  EXPECT_EQ(key.error().code, ErrorCode::kIo);
  const auto directory = read_job_key(folder_.file("."));
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::protocol
