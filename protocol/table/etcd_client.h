#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

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

  /// Returns whether etcd has answered a call that began after the last failure.
  bool answers() const { return asked_at.load() > failed_at.load(); }
};

/// Sends transactions to etcd's JSON gateway: HTTP/1.1 on one connection that stays open. A member that does not answer
/// is left for the next one of the list.
///
/// Threads  one at a time.
class EtcdClient {
 public:
  EtcdClient(EtcdOptions options, std::shared_ptr<EtcdHealth> health);
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

 private:
  struct Attempt;
  struct Curl;
  Result<std::string> post_until(const char* path, const std::string& body, TimeNs deadline, bool& repeated);
  Attempt post(const std::string& endpoint, const char* path, const std::string& body, TimeNs limit);
  Attempt post_authentic(const std::string& endpoint, const char* path, const std::string& body, TimeNs limit);
  Attempt authenticate(const std::string& endpoint, TimeNs limit);

  EtcdOptions options_;
  std::shared_ptr<EtcdHealth> health_;
  std::unique_ptr<Curl> curl_;
  std::string token_;  ///< of the user, from etcd
};

}  // namespace millrace::protocol
