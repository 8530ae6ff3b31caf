#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/table/etcd_address.h"
#include "protocol/table/etcd_transaction.h"

namespace millrace::protocol {

/// Holds the knowledge that the clients of one table share about etcd.
///
/// Threads  any.
struct EtcdHealth {
  std::atomic<size_t> endpoint = 0;    ///< the one that answered last, or comes after the one that failed last
  std::atomic<TimeNs> failed_at = -1;  ///< when a call last ended without an answer
  std::atomic<TimeNs> asked_at = 0;    ///< when the last call that got an answer began

  std::atomic<TimeNs> poll_began = kNoPoll;  ///< beginning of the poller's call in progress

  static constexpr TimeNs kNoPoll = INT64_MAX;
  /// Longest time of a call that may still be answered. A longer one hangs in the lookup of a name.
  static constexpr TimeNs kPollMax = kNsPerS;

  /// Returns whether etcd has answered a call that began after the last failure, and no poll hangs.
  bool answers() const {
    const TimeNs began = poll_began.load();
    const bool hangs = began != kNoPoll && monotonic_now_ns() - began > kPollMax;
    return !hangs && asked_at.load() > failed_at.load();
  }
};

/// The end of a call whose time is over while the system looks a name up. No program can cancel a lookup.
enum class NameLookups : uint8_t {
  kLeftBehind,  ///< the call ends in time, and the lookup continues in a thread of its own
  kAwaited,     ///< the call ends late. So a caller that calls again and again has one lookup under way
};

/// Names a member that has answered.
struct EtcdPeer {
  size_t endpoint = 0;  ///< of EtcdOptions
  std::string address;  ///< "ADDRESS:PORT" of the connection
  std::string token;    ///< of the user, from etcd; empty: etcd has no users
};

/// A connection of libcurl with the options of a table.
struct EtcdConnection;

/// Sends transactions to etcd's JSON gateway: HTTP/1.1 on one connection that stays open. A member that does not answer
/// is left for the next one of the list.
///
/// Threads  one at a time.
class EtcdClient {
 public:
  EtcdClient(EtcdOptions options, std::shared_ptr<EtcdHealth> health, NameLookups lookups = NameLookups::kLeftBehind);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  struct Answer {
    EtcdAnswer etcd;
    /// An earlier attempt of this call may have got no answer. The transaction may have run before, so that its
    /// comparisons may have failed for that reason.
    bool repeated = false;
  };

  /// Runs a transaction, at one member after another until one answers or the time is over. Every attempt runs the
  /// whole transaction, so its comparisons must fail once it has taken effect, or running it twice must be harmless.
  ///
  /// Errors   timeout: no member answered; the transaction may have taken effect, or may yet. io: etcd refuses (rights,
  ///          certificates, no space); limit_exceeded: too large for etcd; malformed: not an etcd.
  Result<Answer> transact(const EtcdTransaction& transaction, TimeNs deadline);

  /// Calls another method of the gateway, as transact(). Returns the JSON object of the answer.
  Result<std::string> call(const char* path, const std::string& body, TimeNs deadline);

  /// Returns the member that answered last. Empty: none has.
  const std::optional<EtcdPeer>& peer() const { return peer_; }

 private:
  struct Attempt;
  struct Refused;
  static Refused judge_refusal(const GatewayError& refusal);
  Result<std::string> post_until(const char* path, const std::string& body, TimeNs deadline, bool& repeated);
  Attempt post(const std::string& endpoint, const char* path, const std::string& body, TimeNs limit);
  Attempt post_authentic(const std::string& endpoint, const char* path, const std::string& body, TimeNs limit);
  Attempt authenticate(const std::string& endpoint, TimeNs limit);

  EtcdOptions options_;
  std::shared_ptr<EtcdHealth> health_;
  std::unique_ptr<EtcdConnection> connection_;
  std::string token_;  ///< of the user, from etcd
  std::optional<EtcdPeer> peer_;
};

/// Waits for changes of one key, by a stream of etcd's JSON gateway (/v3/watch). The stream decides nothing. News are
/// its messages and its end: the caller should read the key.
///
/// Limits   ends a stream that has no message after kOpenMax, or more than kNewsBytesMax of bytes since take_news().
/// Threads  one at a time; stop() may be called from any.
class EtcdWatch {
 public:
  EtcdWatch(const EtcdOptions& options, std::string_view key);
  ~EtcdWatch();
  EtcdWatch(const EtcdWatch&) = delete;
  EtcdWatch& operator=(const EtcdWatch&) = delete;

  /// Begins a stream at that member, without a wait and without a lookup of its name. REQUIRES: state() is kNone.
  void begin(const EtcdPeer& peer);
  /// Ends the stream.
  void end();

  enum class State : uint8_t {
    kNone,
    kBegun,  ///< etcd has not answered yet
    kOpen,   ///< etcd sends the key's changes
  };
  State state() const { return state_; }
  /// Returns the member of the stream, as EtcdPeer::endpoint.
  size_t endpoint() const { return endpoint_; }

  /// Waits until there are news, or stop() was called, or the time has come.
  void wait(TimeNs until);
  bool has_news() const { return has_news_; }
  /// Forgets the news: the caller reads the key now.
  void take_news();
  /// Ends the wait in progress and all later ones.
  void stop();

  static constexpr TimeNs kOpenMax = 5 * kNsPerS;
  static constexpr size_t kNewsBytesMax = size_t{64} << 10;

 private:
  struct Multi;
  static size_t take_bytes(const char* data, size_t size, size_t count, void* to);
  bool take(std::string_view bytes);
  void drive();

  std::string scheme_;
  std::vector<std::string> endpoints_;
  std::string request_;
  std::unique_ptr<EtcdConnection> connection_;
  std::unique_ptr<Multi> multi_;
  State state_ = State::kNone;
  size_t endpoint_ = 0;
  TimeNs began_ = 0;
  std::string line_;  ///< the beginning of the next message
  size_t news_bytes_ = 0;
  bool has_news_ = false;
  std::atomic<bool> stopped_ = false;
};

}  // namespace millrace::protocol
