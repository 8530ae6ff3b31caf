#include "protocol/table/etcd_poller.h"

#include <chrono>
#include <utility>
#include <vector>

#include "protocol/base/text.h"
#include "protocol/table/membership_table.h"

namespace millrace::protocol {

EtcdPoller::EtcdPoller(const EtcdOptions& options, std::shared_ptr<EtcdHealth> health, EtcdWatched watched,
                       EtcdPace pace)
    : health_(std::move(health)),
      client_(options, health_, NameLookups::kAwaited),
      watched_(std::move(watched)),
      pace_(pace),
      watch_(options, watched_.changes_key),
      thread_([this] { run(); }) {}

EtcdPoller::~EtcdPoller() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stops_.notify_all();
  watch_.stop();
  thread_.join();
  if (lease_id_ != 0 && health_->answers()) revoke();
}

void EtcdPoller::hold(const EtcdLeaseKey& lease) {
  const std::lock_guard lock(mutex_);
  if (lease_ != lease) lease_ = lease;
  lease_wanted_ = monotonic_now_ns();
}

void EtcdPoller::note(uint64_t mod_revision) {
  uint64_t known = mod_revision_.load();
  while (known < mod_revision && !mod_revision_.compare_exchange_weak(known, mod_revision)) {
  }
}

void EtcdPoller::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    lock.unlock();
    if (is_read_due()) {
      health_->poll_began.store(monotonic_now_ns());
      read();
      read_ended_ = monotonic_now_ns();
    }
    health_->poll_began.store(monotonic_now_ns());
    if (found() == Found::kSame) keep_lease();  // of another table it has no number
    health_->poll_began.store(EtcdHealth::kNoPoll);
    keep_watch();
    watch_.wait(monotonic_now_ns() + pace_.read_every);
    lock.lock();
    // News do not make reads more frequent than polls are. Meanwhile the stream is not read.
    const TimeNs left = watch_.has_news() ? read_ended_ + pace_.read_every - monotonic_now_ns() : 0;
    stops_.wait_for(lock, std::chrono::nanoseconds(left), [this] { return stopped_; });
  }
}

bool EtcdPoller::is_read_due() const {
  if (watch_.state() != EtcdWatch::State::kOpen || watch_.has_news()) return true;
  if (!read_answered_ || !health_->answers()) return true;
  return monotonic_now_ns() - read_ended_ >= pace_.watched_read_every;
}

/// Keeps a stream at the member that answers.
void EtcdPoller::keep_watch() {
  const std::optional<EtcdPeer>& peer = client_.peer();
  if (!peer || peer->address.empty() || !health_->answers()) return;
  if (watch_.state() != EtcdWatch::State::kNone && watch_.endpoint() != peer->endpoint) watch_.end();
  const TimeNs now = monotonic_now_ns();
  if (watch_.state() != EtcdWatch::State::kNone || (watch_began_ && now - *watch_began_ < pace_.watch_every)) return;
  watch_began_ = now;
  watch_.begin(*peer);
}

void EtcdPoller::keep_lease() {
  std::optional<EtcdLeaseKey> lease;
  const TimeNs now = monotonic_now_ns();
  bool wanted = false;
  {
    const std::lock_guard lock(mutex_);
    lease = lease_;
    wanted = lease_ && now - lease_wanted_ <= kLeaseWantedFor;
  }
  if (lease_id_ != 0 && lease != held_ && !(wanted && move_lease(*lease))) {
    revoke();
    renewed_ = 0;
  }
  if (!wanted || now - renewed_ < kRenewEvery) return;
  if (lease_id_ == 0) return take_lease(*lease);
  const Result<std::string> renewed =
      client_.call("/v3/lease/keepalive", json_of_number("ID", lease_id_), now + kReadLimit);
  if (!renewed) return;
  renewed_ = now;
  if (number_in_json(*renewed, "TTL") > 0) return;
  lease_id_ = 0;  // etcd has ended it: this process was stopped, or cut off
  renewed_ = 0;
}

void EtcdPoller::take_lease(const EtcdLeaseKey& lease) {
  const TimeNs now = renewed_ = monotonic_now_ns();
  const Result<std::string> granted =
      client_.call("/v3/lease/grant", json_of_number("TTL", kEtcdLeaseSeconds), now + kReadLimit);
  if (!granted) return;
  const int64_t id = number_in_json(*granted, "ID");
  if (id == 0) return;
  EtcdTransaction take;
  take.if_version(lease.guard, lease.guard_version);
  take.then().put_leased(lease.key, lease.value, id);
  const auto taken = client_.transact(take, now + kReadLimit);
  if (!taken || !taken->etcd.succeeded) return;  // the lease ends by itself
  lease_id_ = id;
  held_ = lease;
}

/// Puts the key in the place of the one that is held: a process that lives is seen at every moment. Returns false where
/// the guard has changed. Without an answer the next pass repeats the move, which may have taken place.
bool EtcdPoller::move_lease(const EtcdLeaseKey& lease) {
  EtcdTransaction move;
  move.if_version(lease.guard, lease.guard_version);
  if (held_.key != lease.key) move.then().remove(held_.key);
  move.then().put_leased(lease.key, lease.value, lease_id_);
  const auto moved = client_.transact(move, monotonic_now_ns() + kReadLimit);
  if (!moved) return true;
  if (!moved->etcd.succeeded) return false;
  held_ = lease;
  return true;
}

/// Ends the lease, or leaves it to its time.
void EtcdPoller::revoke() {
  (void)client_.call("/v3/lease/revoke", json_of_number("ID", lease_id_), monotonic_now_ns() + kReadLimit);
  lease_id_ = 0;
}

void EtcdPoller::read() {
  // Before the request: a linearizable read that begins now returns no earlier revision, unless etcd has lost data.
  const uint64_t known = mod_revision_.load();
  watch_.take_news();  // a later message leads to another read
  EtcdTransaction transaction;
  transaction.then().get(watched_.changes_key).get(watched_.identity_key);
  const auto answer = client_.transact(transaction, monotonic_now_ns() + kReadLimit);
  read_answered_ = answer && answer->etcd.ranges.size() == 2;
  if (!read_answered_) return;
  const std::vector<EtcdEntry>& changes = answer->etcd.ranges[0];
  const std::vector<EtcdEntry>& identity = answer->etcd.ranges[1];
  const uint64_t revision = changes.empty() ? 0 : changes[0].mod_revision;
  if (identity.empty() || text_of(identity[0].value) != watched_.identity) {
    found_.store(Found::kAnother);
  } else if (revision < known) {
    found_.store(Found::kOlder);
  } else {
    note(revision);
  }
}

}  // namespace millrace::protocol
