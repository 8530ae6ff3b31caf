#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "protocol/table/etcd_client.h"

namespace millrace::protocol {

/// A key that exists while a process lives.
struct EtcdLeaseKey {
  std::string key;
  std::string value;
  std::string guard;  ///< the lease is taken only while this key has that version; its own key: version 0
  uint64_t guard_version = 0;
  bool operator==(const EtcdLeaseKey&) const = default;
};

/// The table that a poller watches.
struct EtcdWatched {
  std::string changes_key;
  std::string identity_key;
  std::string identity;
};

/// How often a poller asks etcd.
struct EtcdPace {
  TimeNs read_every = 50 * kNsPerMs;           ///< pause after a read, also while a stream has much news
  TimeNs watched_read_every = 250 * kNsPerMs;  ///< while a stream is open without news, and etcd answers
  TimeNs watch_every = kNsPerS;                ///< between the beginnings of two streams
};

/// Reads the last change of the key `changes` again and again, on a thread and a connection of its own. So the caller's
/// loop never waits for it. It also notices that etcd answers again or has lost data, and keeps the process's lease.
/// A watch stream beside the reads makes them rarer: a read follows its news, and no decision rests on it.
class EtcdPoller {
 public:
  EtcdPoller(const EtcdOptions& options, std::shared_ptr<EtcdHealth> health, EtcdWatched watched, EtcdPace pace = {});
  /// Gives the lease back. Waits for the call in progress and for that: kReadLimit at most each, and longer while the
  /// system looks a name up.
  ~EtcdPoller();
  EtcdPoller(const EtcdPoller&) = delete;
  EtcdPoller& operator=(const EtcdPoller&) = delete;

  /// Returns the largest mod revision that was read or noted. 0: none yet.
  uint64_t mod_revision() const { return mod_revision_.load(); }
  enum class Found : uint8_t {
    kSame,
    kAnother,  ///< another identity than the one watched, or none
    kOlder,    ///< a mod revision that was smaller than an earlier one
  };
  /// Returns the finding of the reads. It stays once it is not kSame.
  Found found() const { return found_.load(); }
  /// Notes one that another connection has read.
  void note(uint64_t mod_revision);

  /// Keeps the lease of this key from now on, as long as this is called at least every kLeaseWantedFor. A key that it
  /// kept before goes in the moment in which this one comes.
  void hold(const EtcdLeaseKey& lease);

  static constexpr TimeNs kLeaseWantedFor = kNsPerS;
  static constexpr TimeNs kRenewEvery = kNsPerS / 2;
  static constexpr TimeNs kReadLimit = 500 * kNsPerMs;

 private:
  void run();
  bool is_read_due() const;
  void read();
  void keep_watch();
  void keep_lease();
  void take_lease(const EtcdLeaseKey& lease);
  bool move_lease(const EtcdLeaseKey& lease);
  void revoke();

  std::shared_ptr<EtcdHealth> health_;
  EtcdClient client_;
  EtcdWatched watched_;
  EtcdPace pace_;
  EtcdWatch watch_;
  std::optional<TimeNs> watch_began_;  ///< the last stream
  TimeNs read_ended_ = 0;              ///< the last one
  bool read_answered_ = false;         ///< the last one
  std::atomic<uint64_t> mod_revision_ = 0;
  std::atomic<Found> found_ = Found::kSame;
  std::mutex mutex_;
  std::condition_variable stops_;
  bool stopped_ = false;
  std::optional<EtcdLeaseKey> lease_;  ///< that is wanted; under mutex_
  TimeNs lease_wanted_ = 0;            ///< when last; under mutex_
  EtcdLeaseKey held_;                  ///< of lease_id_
  int64_t lease_id_ = 0;               ///< 0: none
  TimeNs renewed_ = 0;
  std::thread thread_;
};

}  // namespace millrace::protocol
