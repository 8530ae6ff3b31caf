#include "monitoring/http/secure/http_security.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "monitoring/http/secure/tls.h"
#include "protocol/address/host_port.h"
#include "protocol/keys/key.h"
#include "protocol/keys/secret_file.h"

namespace millrace::monitoring {
namespace {

constexpr size_t kTokenBytesMin = 16;
constexpr size_t kTokenBytesMax = 512;
/// Bounds the tokens of a port: each request is compared with all of them.
constexpr size_t kTokenFileBytesMax = 64 << 10;

using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

/// Digests have one length, so that comparing them takes the same time for every token.
Digest digest_of(std::string_view token) {
  std::vector<unsigned char> bytes(token.begin(), token.end());
  Digest digest{};
  SHA256(bytes.data(), bytes.size(), digest.data());
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return digest;
}

std::string option_name(HttpOptionNames names, const char* flag, const char* field) {
  return names == HttpOptionNames::kFlags ? flag : field;
}

std::string tls_name(HttpOptionNames names) { return option_name(names, "--http-tls", "http_tls"); }
std::string token_name(HttpOptionNames names) { return option_name(names, "--http-token-file", "http_token_file"); }

bool is_token(std::string_view text) {
  return text.size() >= kTokenBytesMin && text.size() <= kTokenBytesMax &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

std::unexpected<Error> no_first_token() {
  return fail(ErrorCode::kInvalidArgument,
              "its first line must be a token of 16 to 512 visible characters; make one by openssl rand -hex 32");
}

/// A token of a port.
struct KnownToken {
  std::string name = {};  ///< empty: the port's own
  Digest digest{};        ///< of the token, which is kept nowhere
};

/// Reads the lines of a token file. No sentence has a part of a line: a token may be in a name's place.
Result<std::vector<KnownToken>> tokens_of(std::string_view text, HttpTokens kind) {
  std::vector<KnownToken> tokens;
  if (kind == HttpTokens::kFirstLine) text = text.substr(0, text.find('\n'));
  for (size_t number = 1; number == 1 || !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (number > 1 && (line.empty() || line.starts_with('#'))) continue;
    const size_t name_bytes = number == 1 ? 0 : std::min(line.find(' '), line.size());
    const std::string_view name = line.substr(0, name_bytes);
    const std::string_view token = number == 1 ? line : line.substr(std::min(name_bytes + 1, line.size()));
    const auto wrong = [number](const char* sentence) {
      return fail(ErrorCode::kInvalidArgument, "line " + std::to_string(number) + sentence);
    };
    if (number == 1 && !is_token(token)) return no_first_token();
    if (number > 1 && (!is_token(token) || !protocol::refuse_key_name(name).empty()))
      return wrong(" is not NAME TOKEN: a name as a key's, a space, and a token of 16 to 512 visible characters");
    const Digest digest = digest_of(token);
    for (const KnownToken& earlier : tokens) {
      if (earlier.digest == digest) return wrong(" has the token of an earlier line");
      if (earlier.name == name) return wrong(" has the name of an earlier line");
    }
    tokens.push_back({std::string(name), digest});
  }
  return tokens;
}

/// Reads a token file by `parse`, which gets its text.
template <typename Parse>
auto read_token_file(const std::string& path, const std::string& option, const Parse& parse)
    -> decltype(parse(std::string_view())) {
  auto text = protocol::read_secret_file(path, "token", kTokenFileBytesMax);
  if (!text) return fail(text.error().code, option + ": " + text.error().message);
  auto parsed = parse(std::string_view(*text));
  OPENSSL_cleanse(text->data(), text->size());
  if (!parsed) return fail(parsed.error().code, option + ": token file " + path + ": " + parsed.error().message);
  return parsed;
}

/// Reads the token of a client: the file's first line.
Result<std::string> read_token(const std::string& path, const std::string& option) {
  return read_token_file(path, option, [](std::string_view text) -> Result<std::string> {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (!is_token(line)) return no_first_token();
    return std::string(line);
  });
}

Result<std::shared_ptr<const TlsContext>> open_server_tls(const std::string& tls, const std::string& option) {
  const size_t comma = tls.find(',');
  const bool are_two = comma != std::string::npos && comma != 0 && comma + 1 != tls.size() &&
                       tls.find(',', comma + 1) == std::string::npos;
  if (!are_two) return fail(ErrorCode::kInvalidArgument, option + ": give two files, CERT,KEY");
  auto context = TlsContext::server(tls.substr(0, comma), tls.substr(comma + 1));
  if (!context) return fail(context.error().code, option + ": " + context.error().message);
  return context;
}

class FileProtection : public HttpProtection {
 public:
  FileProtection(HttpSecurityOptions options, HttpOptionNames names, HttpTokens kind)
      : options_(std::move(options)), names_(names), kind_(kind) {}

  bool uses_tls() const override { return !options_.tls.empty(); }
  bool asks_for_token() const override { return !options_.token_file.empty(); }
  std::optional<std::string> reader_of(std::string_view token) const override {
    const Digest sent = digest_of(token);
    const std::lock_guard lock(mutex_);
    std::optional<std::string> reader;
    for (const KnownToken& known : tokens_) {  // to the last one: the time must not tell which one it is
      if (CRYPTO_memcmp(sent.data(), known.digest.data(), sent.size()) == 0) reader = known.name;
    }
    return reader;
  }
  std::vector<std::string> reader_names() const override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const KnownToken& known : tokens_) {
      if (!known.name.empty()) names.push_back(known.name);
    }
    return names;
  }
  std::unique_ptr<ByteChannel> open(const Descriptor& socket) const override {
    const std::lock_guard lock(mutex_);
    return tls_ ? tls_->open(socket, {}) : open_plain_channel(socket);
  }
  std::optional<int64_t> certificate_end() const override {
    const std::lock_guard lock(mutex_);
    return tls_ ? std::optional(tls_->certificate_end()) : std::nullopt;
  }
  Status reload() override {
    std::vector<KnownToken> tokens;
    if (asks_for_token()) {
      auto read = read_token_file(options_.token_file, token_name(names_),
                                  [this](std::string_view text) { return tokens_of(text, kind_); });
      if (!read) return std::unexpected(read.error());
      tokens = std::move(*read);
    }
    std::shared_ptr<const TlsContext> tls;
    if (uses_tls()) {
      auto opened = open_server_tls(options_.tls, tls_name(names_));
      if (!opened) return std::unexpected(opened.error());
      tls = std::move(*opened);
    }
    const std::lock_guard lock(mutex_);
    tokens_ = std::move(tokens);
    tls_ = std::move(tls);
    return {};
  }

 private:
  const HttpSecurityOptions options_;
  const HttpOptionNames names_;
  const HttpTokens kind_;
  mutable std::mutex mutex_;
  std::vector<KnownToken> tokens_;
  std::shared_ptr<const TlsContext> tls_;
};

class FileCaller : public HttpCaller {
 public:
  FileCaller(std::string token, std::shared_ptr<const TlsContext> tls, std::vector<std::string> named)
      : token_(std::move(token)), tls_(std::move(tls)), named_(std::move(named)) {}

  bool uses_tls() const override { return tls_ != nullptr; }
  const std::string& token() const override { return token_; }
  bool is_named(std::string_view address) const override { return std::ranges::find(named_, address) != named_.end(); }
  std::optional<int64_t> certificate_end() const override {
    return tls_ ? std::optional(tls_->certificate_end()) : std::nullopt;
  }
  std::unique_ptr<ByteChannel> open(const Descriptor& socket, const std::string& host) const override {
    return tls_ ? tls_->open(socket, host) : open_plain_channel(socket);
  }

 private:
  const std::string token_;
  const std::shared_ptr<const TlsContext> tls_;
  const std::vector<std::string> named_;
};

}  // namespace

std::string refuse_http(const std::string& http, const HttpSecurityOptions& options, HttpOptionNames names) {
  const std::string port = option_name(names, "--http", "WorkerConfig::http");
  const std::string insecure = option_name(names, "--http-insecure", "http_insecure");
  const bool is_protected = !options.tls.empty() && !options.token_file.empty();
  if (http.empty()) {
    if (options.tls.empty() && options.token_file.empty() && !options.insecure) return {};
    const std::string given = !options.tls.empty()          ? tls_name(names)
                              : !options.token_file.empty() ? token_name(names)
                                                            : insecure;
    return given + " is for the port of " + port + ": give that, too";
  }
  if (is_protected && options.insecure) return insecure + ": this port has TLS and a token; leave one of them out";
  const auto address = protocol::parse_host_port(http);
  if (is_protected || !address || protocol::is_loopback_host(address->host)) return {};
  if (options.insecure && !options.token_file.empty()) {
    return token_name(names) + ": the token would reach " + http + " unencrypted; give " + tls_name(names) +
           ", or leave the token out";
  }
  if (options.insecure) return {};
  return port + " " + http + ": other machines may reach this address; give " + tls_name(names) + " and " +
         token_name(names) + ", or say " + insecure +
         ": every process that reaches the port may then read the names, addresses and steps of all jobs";
}

Result<std::shared_ptr<HttpProtection>> open_http_protection(const std::string& http,
                                                             const HttpSecurityOptions& options, HttpOptionNames names,
                                                             HttpTokens tokens) {
  if (std::string refusal = refuse_http(http, options, names); !refusal.empty())
    return fail(ErrorCode::kInvalidArgument, std::move(refusal));
  if (options.tls.empty() && options.token_file.empty()) return nullptr;
  auto protection = std::make_shared<FileProtection>(options, names, tokens);
  if (const Status read = protection->reload(); !read) return std::unexpected(read.error());
  return protection;
}

Result<std::shared_ptr<const HttpCaller>> open_http_caller(const HttpSecurityOptions& options,
                                                           std::vector<std::string> named) {
  if (options.ca_file.empty() && options.token_file.empty()) return nullptr;
  std::string token;
  if (!options.token_file.empty()) {
    auto read = read_token(options.token_file, token_name(HttpOptionNames::kFlags));
    if (!read) return std::unexpected(read.error());
    token = std::move(*read);
  }
  std::shared_ptr<const TlsContext> tls;
  if (!options.ca_file.empty()) {
    auto opened = TlsContext::client(options.ca_file);
    if (!opened) return fail(opened.error().code, "--http-ca: " + opened.error().message);
    tls = std::move(*opened);
  }
  return std::make_shared<FileCaller>(std::move(token), std::move(tls), std::move(named));
}

}  // namespace millrace::monitoring
