#include "monitoring/http/secure/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "protocol/keys/secret_file.h"

namespace millrace::monitoring {
namespace {

constexpr size_t kKeyFileBytesMax = 64 << 10;
/// The authorities of a whole system have 300 KiB.
constexpr size_t kCertificateFileBytesMax = 4 << 20;
/// Signing takes the port's thread: 4 ms with 4096 bits, and eight times that with twice as many.
constexpr int kRsaBitsMax = 4096;
/// Bytes that one call may take off the socket; poll() reports the rest.
constexpr size_t kReadBudget = 64 << 10;
/// For TLS 1.2: a key exchange per connection, and authenticated encryption. TLS 1.3 has no others.
constexpr const char* kCiphers = "ECDHE+AESGCM:ECDHE+CHACHA20";

struct Free {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(ASN1_TIME* time) const { ASN1_STRING_free(time); }
};

/// Returns the reason of the last error of this thread, and forgets it.
std::string last_error() {
  const unsigned long code = ERR_peek_last_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "no reason is known" : reason;
}

/// The socket of a BIO, and the state of its reads.
struct TlsSocket {
  int number;
  bool ended = false;  ///< the peer has closed its end
  size_t budget = 0;   ///< bytes that this call may still read
};

TlsSocket& socket_of(BIO* bio) { return *static_cast<TlsSocket*>(BIO_get_data(bio)); }

// OpenSSL's own BIO of sockets writes without MSG_NOSIGNAL, which would end the process where a client is gone.
int bio_write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(socket_of(bio).number, bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int bio_read(BIO* bio, char* into, int size) {
  BIO_clear_retry_flags(bio);
  TlsSocket& socket = socket_of(bio);
  if (socket.budget == 0) {
    BIO_set_retry_read(bio);
    return -1;
  }
  const ssize_t got = ::recv(socket.number, into, std::min(static_cast<size_t>(size), socket.budget), 0);
  if (got > 0) socket.budget -= static_cast<size_t>(got);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (got == 0) socket.ended = true;
  return static_cast<int>(got);
}

long bio_control(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
  if (command == BIO_CTRL_EOF) return socket_of(bio).ended ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* bio_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "millrace socket");
    MILLRACE_CHECK(made != nullptr, 0);
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return method;
}

class TlsChannel : public ByteChannel {
 public:
  /// Takes `bio`, of bio_method().
  TlsChannel(std::unique_ptr<SSL, Free> ssl, BIO* bio, int socket) : ssl_(std::move(ssl)), socket_{.number = socket} {
    BIO_set_data(bio, &socket_);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);
  }

  Moved read(std::span<char> into) override {
    if (!problem_.empty()) return {Outcome::kBroken};
    size_t got = 0;
    socket_.budget = kReadBudget;
    ERR_clear_error();
    const int done = SSL_read_ex(ssl_.get(), into.data(), into.size(), &got);
    return done == 1 ? Moved{Outcome::kMoved, got} : Moved{outcome_of(done)};
  }

  Moved write(std::string_view bytes) override {
    if (!problem_.empty()) return {Outcome::kBroken};
    size_t sent = 0;
    socket_.budget = kReadBudget;
    ERR_clear_error();
    const int done = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &sent);
    return done == 1 ? Moved{Outcome::kMoved, sent} : Moved{outcome_of(done)};
  }

  void end_writing() override {
    ERR_clear_error();
    if (problem_.empty()) SSL_shutdown(ssl_.get());
    ERR_clear_error();
    ::shutdown(socket_.number, SHUT_WR);
  }

  bool is_open() const override { return problem_.empty() && SSL_is_init_finished(ssl_.get()) == 1; }
  std::string problem() const override { return problem_; }

 private:
  Outcome outcome_of(int done) {
    switch (SSL_get_error(ssl_.get(), done)) {
      case SSL_ERROR_WANT_READ: return Outcome::kWaitToRead;
      case SSL_ERROR_WANT_WRITE: return Outcome::kWaitToWrite;
      case SSL_ERROR_ZERO_RETURN: return Outcome::kEnd;
      default: break;
    }
    // No call of OpenSSL may follow a failed one.
    const long verified = SSL_get_verify_result(ssl_.get());
    problem_ = verified == X509_V_OK
                   ? "TLS failed: " + last_error()
                   : std::string("its certificate is refused: ") + X509_verify_cert_error_string(verified);
    ERR_clear_error();
    return Outcome::kBroken;
  }

  std::unique_ptr<SSL, Free> ssl_;
  TlsSocket socket_;
  std::string problem_;
};

/// A key with a passphrase is refused: OpenSSL would ask the terminal.
int no_passphrase(char* /*into*/, int /*size*/, int /*for_writing*/, void* /*data*/) { return -1; }

}  // namespace

struct TlsContext::Impl {
  explicit Impl(const SSL_METHOD* method) : context(SSL_CTX_new(method)) {
    if (context == nullptr) return;
    SSL_CTX_set_mode(context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    // A read returns after each message that is no data: a peer that sends such messages alone holds no thread.
    SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
    // No state outlives a connection: a session of an old token or key cannot be taken up again.
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(context, 0);
    // The machine's configuration may demand a later version; 0: it demands none.
    const long least = SSL_CTX_get_min_proto_version(context);
    const bool has_version = least >= TLS1_2_VERSION || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1;
    is_usable = has_version && SSL_CTX_set_cipher_list(context, kCiphers) == 1;
  }
  ~Impl() { SSL_CTX_free(context); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static Result<std::unique_ptr<Impl>> make(const SSL_METHOD* method) {
    ERR_clear_error();
    auto impl = std::make_unique<Impl>(method);
    if (impl->is_usable) return impl;
    return fail(ErrorCode::kUnavailable, "OpenSSL cannot begin: " + last_error());
  }

  SSL_CTX* const context;
  bool is_usable = false;
  int64_t certificate_end = 0;
};

TlsContext::TlsContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsContext::~TlsContext() = default;

namespace {

struct Certificates {
  std::vector<std::unique_ptr<X509, Free>> all;             ///< in the file's order; at least one
  int64_t first_end = std::numeric_limits<int64_t>::max();  ///< the earliest end, in Unix seconds
};

/// Returns when a certificate ends, in Unix seconds; nothing: its end is no time.
std::optional<int64_t> end_of(const X509& certificate) {
  constexpr int64_t kSecondsPerDay = 86'400;
  const std::unique_ptr<ASN1_TIME, Free> epoch(ASN1_TIME_set(nullptr, 0));
  int days = 0;
  int seconds = 0;
  if (!epoch || ASN1_TIME_diff(&days, &seconds, epoch.get(), X509_get0_notAfter(&certificate)) != 1)
    return std::nullopt;
  return days * kSecondsPerDay + seconds;
}

/// Reads the certificates of a file.
Result<Certificates> read_certificates(const std::string& path) {
  const auto text = protocol::read_trusted_file(path, "certificate", kCertificateFileBytesMax);
  if (!text) return std::unexpected(text.error());
  const std::unique_ptr<BIO, Free> bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
  Certificates certificates;
  while (bio != nullptr) {
    std::unique_ptr<X509, Free> one(PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr));
    if (!one) break;
    const std::optional<int64_t> end = end_of(*one);
    if (!end) {
      ERR_clear_error();
      return fail(ErrorCode::kInvalidArgument,
                  "certificate file " + path + ": it has a damaged certificate (its end is no time)");
    }
    certificates.first_end = std::min(certificates.first_end, *end);
    certificates.all.push_back(std::move(one));
  }
  const unsigned long code = ERR_peek_last_error();
  const bool at_end = ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
  if (at_end && !certificates.all.empty()) {
    ERR_clear_error();
    return certificates;
  }
  return fail(ErrorCode::kInvalidArgument,
              "certificate file " + path + ": it has no certificate in PEM, or a damaged one (" + last_error() + ")");
}

Result<std::unique_ptr<EVP_PKEY, Free>> read_key(const std::string& path) {
  auto text = protocol::read_secret_file(path, "key", kKeyFileBytesMax);
  if (!text) return std::unexpected(text.error());
  const std::unique_ptr<BIO, Free> bio(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
  std::unique_ptr<EVP_PKEY, Free> key(
      bio == nullptr ? nullptr : PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  OPENSSL_cleanse(text->data(), text->size());
  if (!key) {
    return fail(ErrorCode::kInvalidArgument,
                "key file " + path + ": it has no private key in PEM, or a passphrase (" + last_error() + ")");
  }
  if (EVP_PKEY_get_base_id(key.get()) == EVP_PKEY_RSA && EVP_PKEY_get_bits(key.get()) > kRsaBitsMax) {
    return fail(
        ErrorCode::kInvalidArgument,
        "key file " + path + ": a key of RSA has at most 4096 bits, since health waits for handshakes; take P-256");
  }
  return key;
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::server(const std::string& certificate_file,
                                                             const std::string& key_file) {
  auto impl = Impl::make(TLS_server_method());
  if (!impl) return std::unexpected(impl.error());
  SSL_CTX* const context = (*impl)->context;
  auto chain = read_certificates(certificate_file);
  if (!chain) return std::unexpected(chain.error());
  const auto key = read_key(key_file);
  if (!key) return std::unexpected(key.error());
  bool taken = SSL_CTX_use_certificate(context, chain->all.front().get()) == 1;
  for (size_t at = 1; at < chain->all.size(); ++at)
    taken = taken && SSL_CTX_add1_chain_cert(context, chain->all[at].get()) == 1;
  if (!taken) {
    return fail(ErrorCode::kInvalidArgument,
                "certificate file " + certificate_file + ": it cannot be used (" + last_error() + ")");
  }
  if (SSL_CTX_use_PrivateKey(context, key->get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    return fail(ErrorCode::kInvalidArgument, "key file " + key_file + ": it is not the key of the certificate in " +
                                                 certificate_file + " (" + last_error() + ")");
  }
  (*impl)->certificate_end = chain->first_end;
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(*impl)));
}

Result<std::shared_ptr<const TlsContext>> TlsContext::client(const std::string& ca_file) {
  auto impl = Impl::make(TLS_client_method());
  if (!impl) return std::unexpected(impl.error());
  SSL_CTX* const context = (*impl)->context;
  const auto trusted = read_certificates(ca_file);
  if (!trusted) return std::unexpected(trusted.error());
  for (const auto& one : trusted->all) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get()) == 1) continue;
    return fail(ErrorCode::kInvalidArgument,
                "certificate file " + ca_file + ": it cannot be used (" + last_error() + ")");
  }
  (*impl)->certificate_end = trusted->first_end;
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  X509_VERIFY_PARAM* const verification = SSL_CTX_get0_param(context);
  // A server's own certificate in the file is trusted without its authority.
  X509_VERIFY_PARAM_set_flags(verification, X509_V_FLAG_PARTIAL_CHAIN);
  X509_VERIFY_PARAM_set_hostflags(verification,
                                  X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(*impl)));
}

int64_t TlsContext::certificate_end() const { return impl_->certificate_end; }

Result<int64_t> read_certificate_end(const std::string& file) {
  const auto certificates = read_certificates(file);
  if (!certificates) return std::unexpected(certificates.error());
  return certificates->first_end;
}

std::unique_ptr<ByteChannel> TlsContext::open(const Descriptor& socket, const std::string& host) const {
  ERR_clear_error();
  std::unique_ptr<SSL, Free> ssl(SSL_new(impl_->context));
  if (!ssl) return nullptr;
  if (host.empty()) {
    SSL_set_accept_state(ssl.get());
  } else {
    const bool is_number = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), host.c_str()) == 1;
    if (!is_number &&
        (SSL_set1_host(ssl.get(), host.c_str()) != 1 || SSL_set_tlsext_host_name(ssl.get(), host.c_str()) != 1)) {
      return nullptr;
    }
    SSL_set_connect_state(ssl.get());
  }
  BIO* const bio = BIO_new(bio_method());
  if (bio == nullptr) return nullptr;
  return std::make_unique<TlsChannel>(std::move(ssl), bio, socket.number());
}

}  // namespace millrace::monitoring
