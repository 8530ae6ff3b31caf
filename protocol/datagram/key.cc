#include "protocol/datagram/key.h"

#include <sodium.h>

#include <cstring>

#include "kernels/base/check.h"
#include "protocol/datagram/session_mac.h"

namespace millrace::protocol {
namespace {

using DerivedKey = SessionMac::Key;

/// Returns keyed BLAKE2b over a purpose and fields one behind the other. Each purpose has fields of fixed lengths, so
/// that no two inputs have the same bytes. (A purpose's terminating 0 is included.)
template <size_t kBytes, typename... Fields>
std::array<uint8_t, kBytes> hash_of(const JobKey& job_key, const char (&purpose)[16], const Fields&... fields) {
  std::array<uint8_t, sizeof(purpose) + (sizeof(fields) + ...)> input;
  size_t used = 0;
  const auto append = [&](const void* bytes, size_t count) {
    std::memcpy(input.data() + used, bytes, count);
    used += count;
  };
  append(purpose, sizeof(purpose));
  (append(&fields, sizeof(fields)), ...);
  std::array<uint8_t, kBytes> derived;
  crypto_generichash(derived.data(), derived.size(), input.data(), input.size(), job_key.data(), job_key.size());
  return derived;
}

DerivedKey derive_key(const JobKey& job_key, const KeyScope& scope) {
  return hash_of<sizeof(DerivedKey)>(job_key, "datagram-key-01", static_cast<uint8_t>(scope.use), scope.job,
                                     scope.incarnation, scope.worker, scope.worker_nonce, scope.aggregator_nonce);
}

}  // namespace

enum class KeyKind : uint8_t { kNone, kHandshake, kSession };

/// A handshake's key, or a session's.
struct DatagramKey::State {
  KeyKind kind = KeyKind::kNone;
  DerivedKey handshake{};
  SessionMac session;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { sodium_memzero(handshake.data(), handshake.size()); }
};

DatagramKey::DatagramKey() : state_(std::make_unique<State>()) { MILLRACE_CHECK(sodium_init() >= 0); }

DatagramKey::DatagramKey(const JobKey& job_key, const KeyScope& scope) : DatagramKey() { derive(job_key, scope); }

void DatagramKey::derive(const JobKey& job_key, const KeyScope& scope) {
  DerivedKey key = derive_key(job_key, scope);
  if (scope.use == KeyUse::kHandshake) {
    state_->kind = KeyKind::kHandshake;
    state_->handshake = key;
  } else {
    state_->kind = KeyKind::kSession;
    state_->session.set_key(key);
  }
  sodium_memzero(key.data(), key.size());
}

DatagramKey::DatagramKey(DatagramKey&&) noexcept = default;
DatagramKey& DatagramKey::operator=(DatagramKey&&) noexcept = default;
DatagramKey::~DatagramKey() = default;

Mac DatagramKey::sign(ByteSpan bytes, uint64_t sequence) const {
  if (state_->kind == KeyKind::kSession) [[likely]] {
    return state_->session.of(bytes, sequence);
  }
  MILLRACE_CHECK(state_->kind == KeyKind::kHandshake, static_cast<int>(state_->kind));
  Mac mac;
  crypto_generichash(mac.data(), mac.size(), bytes.data(), bytes.size(), state_->handshake.data(),
                     state_->handshake.size());
  return mac;
}

bool DatagramKey::verify(ByteSpan bytes, uint64_t sequence, ByteSpan mac) const {
  if (mac.size() != kDatagramMacBytes) return false;
  const Mac expected = sign(bytes, sequence);
  static_assert(kDatagramMacBytes == crypto_verify_16_BYTES);
  return crypto_verify_16(expected.data(), mac.data()) == 0;
}

size_t DatagramKey::seal(const DatagramHeader& header, std::span<uint8_t> packet) const {
  const size_t bytes = datagram_bytes(header);
  MILLRACE_CHECK(bytes <= packet.size() && bytes <= kDatagramBytesMax, bytes, packet.size());
  MILLRACE_CHECK((header.sequence == 0) == (state_->kind == KeyKind::kHandshake), header.sequence);
  put_header(header, packet);
  const Mac mac = sign(packet.first(bytes - kDatagramMacBytes), header.sequence);
  std::memcpy(packet.data() + bytes - kDatagramMacBytes, mac.data(), mac.size());
  return bytes;
}

Nonce challenge_nonce(const JobKey& job_key, uint32_t job, uint64_t incarnation, uint16_t worker,
                      const Nonce& worker_nonce, uint64_t sessions) {
  return hash_of<sizeof(Nonce)>(job_key, "datagram-nonce1", job, incarnation, worker, worker_nonce, sessions);
}

std::string_view datagram_mac_library() { return SessionMac::library(); }

Nonce random_nonce() {
  MILLRACE_CHECK(sodium_init() >= 0);
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace millrace::protocol
