#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/base/buffer.h"
#include "protocol/keys/key.h"

/// An encrypted channel between two holders of one secret: Noise_NNpsk0_25519_ChaChaPoly_SHA256 of the Noise Protocol
/// Framework, revision 34.
namespace millrace::protocol {

inline constexpr size_t kNoiseTagBytes = 16;
/// Of a message of the handshake: an ephemeral key, a tag, and no payload.
inline constexpr size_t kNoiseMessageBytes = kKeyBytes + kNoiseTagBytes;

/// Encrypts or decrypts the records of one direction. Each record has the next number: a record that is changed, left
/// out, repeated or out of order does not open.
class NoiseCipher {
 public:
  explicit NoiseCipher(const SecretKey& key) : key_(key) {}

  /// Encrypts a record in place.
  ///
  /// record   the text, and behind it kNoiseTagBytes that receive the tag.
  /// context  is authenticated, too. Records have none.
  void seal(std::span<uint8_t> record, ByteSpan context = {});
  /// Decrypts a record in place: the text is at its begin, without the tag. False: the peer did not seal these bytes as
  /// its next record; then the cipher and the connection are of no more use.
  [[nodiscard]] bool open(std::span<uint8_t> record, ByteSpan context = {});

 private:
  SecretKey key_;
  uint64_t next_ = 0;
};

/// Runs the handshake: the side that connects writes a message, the other one reads it and answers with another.
///
/// Proves   to each side that the other one has the secret. The first message may be an old one that a stranger
///          repeats: only the first record proves that its sender is there.
/// Keys     new ones for each connection. A secret that leaks later decrypts no recorded connection.
/// Source   noiseprotocol.org/noise.html, section 5 and pattern NNpsk0 of section 9.
class NoiseHandshake {
 public:
  enum class Side : uint8_t { kConnects = 1, kAccepts = 2 };
  struct Ciphers {
    NoiseCipher sends;
    NoiseCipher receives;
  };

  /// context    both sides must have the same.
  /// ephemeral  a new pair for each handshake.
  NoiseHandshake(Side side, const SecretKey& secret, ByteSpan context, const KeyPair& ephemeral = draw_key_pair());

  /// Returns this side's message. The payload is encrypted.
  ///
  /// REQUIRES  it is this side's turn.
  ByteBuffer write(ByteSpan payload = {});
  /// Returns the payload of the other side's message. Empty: its writer lacks the secret, has another context, or the
  /// bytes were changed; the handshake is then over.
  std::optional<ByteBuffer> read(ByteSpan message);
  /// REQUIRES  both messages were written and read.
  Ciphers ciphers() const;

 private:
  using Digest = std::array<uint8_t, 32>;

  void mix_hash(ByteSpan bytes);
  void mix_key(ByteSpan input);
  void mix_ephemeral(const PublicKey& key);
  void mix_shared();
  bool is_answer() const { return messages_ == 1; }

  Side side_;
  KeyPair own_;
  PublicKey theirs_;
  SecretKey chaining_;
  Digest hash_{};
  NoiseCipher cipher_;  ///< of the next payload
  int messages_ = 0;
};

/// Returns the secret that the holders of a key pair share, for one purpose. It tells nothing about the pair, nor about
/// the secrets of other purposes.
SecretKey shared_secret_of(const KeyPair& pair, std::string_view purpose);

}  // namespace millrace::protocol
