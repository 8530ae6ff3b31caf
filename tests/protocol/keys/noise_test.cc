#include "protocol/keys/noise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// The handshake and the records of Noise: against published vectors, and against every change of a byte.
namespace millrace::protocol {
namespace {

using Side = NoiseHandshake::Side;

ByteBuffer bytes_of_digits(std::string_view digits) {
  ByteBuffer bytes;
  for (size_t at = 0; at + 1 < digits.size(); at += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(std::string(digits.substr(at, 2)), nullptr, 16)));
  }
  return bytes;
}

SecretKey secret_of_digits(std::string_view digits) {
  std::array<uint8_t, kKeyBytes> bytes{};
  std::ranges::copy(bytes_of_digits(digits), bytes.begin());
  return SecretKey(bytes);
}

SecretKey secret_of(uint8_t fill) {
  std::array<uint8_t, kKeyBytes> bytes{};
  bytes.fill(fill);
  return SecretKey(bytes);
}

ByteBuffer sealed(NoiseCipher& cipher, ByteSpan text) {
  ByteBuffer record(text.begin(), text.end());
  record.resize(text.size() + kNoiseTagBytes);
  cipher.seal(record);
  return record;
}

/// Both sides of a handshake that was good.
struct Channel {
  explicit Channel(const SecretKey& secret)
      : connects(Side::kConnects, secret, {}), accepts(Side::kAccepts, secret, {}) {
    EXPECT_TRUE(accepts.read(connects.write()));
    EXPECT_TRUE(connects.read(accepts.write()));
  }
  NoiseHandshake connects, accepts;
};

/// Noise_NNpsk0_25519_ChaChaPoly_SHA256 in the vectors of cacophony, which the implementations of Noise share.
TEST(Noise, MakesTheBytesOfThePublishedVectors) {
  const SecretKey secret = secret_of_digits("54686973206973206d7920417573747269616e20706572737065637469766521");
  const ByteBuffer context = bytes_of_digits("4a6f686e2047616c74");
  NoiseHandshake connects(
      Side::kConnects, secret, context,
      key_pair_of(secret_of_digits("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a")));
  NoiseHandshake accepts(
      Side::kAccepts, secret, context,
      key_pair_of(secret_of_digits("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b")));
  const ByteBuffer first = bytes_of_digits("4c756477696720766f6e204d69736573");
  const ByteBuffer opening = connects.write(first);
  EXPECT_EQ(opening, bytes_of_digits("ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944"
                                     "79b962b8aff8485742ac32f905ba45369e2465fb59e138a93d67a0d1266b6a54"));
  EXPECT_EQ(accepts.read(opening), first);
  const ByteBuffer second = bytes_of_digits("4d757272617920526f746862617264");
  const ByteBuffer answer = accepts.write(second);
  EXPECT_EQ(answer, bytes_of_digits("95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843"
                                    "d6062704d5a9c422a8e834423f8c1feada7e8d0d910a1a2cd030fb584221e3"));
  EXPECT_EQ(connects.read(answer), second);
  NoiseHandshake::Ciphers of_caller = connects.ciphers(), of_other = accepts.ciphers();
  const std::vector<std::pair<std::string_view, std::string_view>> records{
      {"462e20412e20486179656b", "e632c3763d7669067383433197a3baddf146e9e70ad4b4e9e59e0f"},
      {"4361726c204d656e676572", "64c6bee32ea91c8474bb4c21d7a700109ad45af77b29764ba5eb1e"},
      {"4a65616e2d426170746973746520536179", "e2fa0bed0603b62d3ccac2ecabbf3fe33f3e86514909b323361626266cb2471cc8"},
      {"457567656e2042f6686d20766f6e2042617765726b",
       "0c01dc9cec1fe4ddd692e8dd32188aa351088dc91183639a53b57aa4692b5ebdef8b8ca111"}};
  for (size_t at = 0; at < records.size(); ++at) {
    const ByteBuffer text = bytes_of_digits(records[at].first);
    NoiseHandshake::Ciphers& from = at % 2 == 0 ? of_caller : of_other;
    NoiseHandshake::Ciphers& to = at % 2 == 0 ? of_other : of_caller;
    ByteBuffer record = sealed(from.sends, text);
    EXPECT_EQ(record, bytes_of_digits(records[at].second)) << at;
    ASSERT_TRUE(to.receives.open(record)) << at;
    EXPECT_TRUE(std::ranges::equal(ByteSpan(record).first(text.size()), text)) << at;
  }
}

TEST(Noise, NoChangedOrCutMessageOfTheHandshakeIsRead) {
  const SecretKey secret = secret_of(1);
  NoiseHandshake connects(Side::kConnects, secret, {});
  const ByteBuffer opening = connects.write();
  ASSERT_EQ(opening.size(), kNoiseMessageBytes);
  const auto reads_opening = [&](ByteSpan message) {
    return NoiseHandshake(Side::kAccepts, secret, {}).read(message).has_value();
  };
  EXPECT_TRUE(reads_opening(opening));
  for (size_t at = 0; at < opening.size(); ++at) {
    ByteBuffer changed = opening;
    changed[at] ^= 1;
    EXPECT_FALSE(reads_opening(changed)) << at;
    EXPECT_FALSE(reads_opening(ByteSpan(opening).first(at))) << at;
  }
  NoiseHandshake accepts(Side::kAccepts, secret, {});
  ASSERT_TRUE(accepts.read(opening));
  const ByteBuffer answer = accepts.write();
  for (size_t at = 0; at < answer.size(); ++at) {
    ByteBuffer changed = answer;
    changed[at] ^= 0x80;
    NoiseHandshake copy = connects;
    EXPECT_FALSE(copy.read(changed)) << at;
  }
  EXPECT_TRUE(connects.read(answer));
}

TEST(Noise, AnotherSecretContextOrDirectionIsRefused) {
  const ByteBuffer context{1, 2, 3}, other{1, 2, 4};
  NoiseHandshake connects(Side::kConnects, secret_of(1), context);
  const ByteBuffer opening = connects.write();
  EXPECT_FALSE(NoiseHandshake(Side::kAccepts, secret_of(2), context).read(opening));
  EXPECT_FALSE(NoiseHandshake(Side::kAccepts, secret_of(1), other).read(opening));
  EXPECT_TRUE(NoiseHandshake(Side::kAccepts, secret_of(1), context).read(opening));
  EXPECT_FALSE(connects.read(opening)) << "its own message, reflected";
}

TEST(Noise, ARecordThatIsChangedRepeatedOrOutOfOrderDoesNotOpen) {
  const Channel channel(secret_of(1));
  NoiseHandshake::Ciphers from = channel.connects.ciphers();
  const NoiseHandshake::Ciphers to = channel.accepts.ciphers();
  const ByteBuffer text(40, 0x5a);
  const ByteBuffer first = sealed(from.sends, text), second = sealed(from.sends, text);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::ranges::search(first, ByteBuffer(8, 0x5a)).size(), 0U);
  const auto opens = [](NoiseCipher& cipher, ByteBuffer record) { return cipher.open(record); };
  for (size_t at = 0; at < first.size(); ++at) {
    ByteBuffer changed = first;
    changed[at] ^= 4;
    NoiseCipher cipher = to.receives;
    EXPECT_FALSE(opens(cipher, changed)) << at;
    cipher = to.receives;
    EXPECT_FALSE(opens(cipher, ByteBuffer(first.begin(), first.begin() + static_cast<ptrdiff_t>(at)))) << at;
  }
  NoiseCipher cipher = to.receives;
  EXPECT_FALSE(opens(cipher, second)) << "the first was left out";
  cipher = to.receives;
  EXPECT_TRUE(opens(cipher, first));
  NoiseCipher again = cipher;
  EXPECT_FALSE(opens(again, first)) << "repeated";
  EXPECT_TRUE(opens(cipher, second));
  cipher = to.sends;
  EXPECT_FALSE(opens(cipher, first)) << "of the other direction";
}

TEST(Noise, AKeyOfTheOtherSideThatMakesNoSecretStopsNothing) {
  KeyPair zero = draw_key_pair();
  zero.public_key = {};
  NoiseHandshake connects(Side::kConnects, secret_of(1), {}, zero), accepts(Side::kAccepts, secret_of(1), {});
  ASSERT_TRUE(accepts.read(connects.write()));
  EXPECT_EQ(accepts.write().size(), kNoiseMessageBytes);
}

TEST(Noise, ThePurposeAndThePairMakeTheSecret) {
  const KeyPair pair = draw_key_pair();
  EXPECT_EQ(shared_secret_of(pair, "a").bytes(), shared_secret_of(pair, "a").bytes());
  EXPECT_NE(shared_secret_of(pair, "a").bytes(), shared_secret_of(pair, "b").bytes());
  EXPECT_NE(shared_secret_of(pair, "a").bytes(), shared_secret_of(draw_key_pair(), "a").bytes());
  EXPECT_NE(shared_secret_of(pair, "a").bytes(), pair.secret.bytes());
}

}  // namespace
}  // namespace millrace::protocol
