#include "switch_agg/aggregator/worker_sessions.h"

#include <utility>

#include "kernels/base/check.h"

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramKey;
using protocol::KeyScope;
using protocol::KeyUse;
using protocol::kSwitchWorkersMax;
using protocol::Nonce;

WorkerSessions::WorkerSessions(uint32_t job, const protocol::JobKey& key, uint32_t racks)
    : job_(job), key_(key), sessions_(kSwitchWorkersMax + racks) {
  handshake_.reserve(sessions_.size());
  for (uint32_t at = 0; at < sessions_.size(); ++at) {
    const uint32_t worker = at < kSwitchWorkersMax ? at : at - kSwitchWorkersMax + protocol::kRackWorkers;
    handshake_.emplace_back(key_, KeyScope::handshake(job_, static_cast<uint16_t>(worker)));
  }
}

void WorkerSessions::begin_incarnation(uint64_t incarnation) {
  incarnation_ = incarnation;
  sent_to_all_ = 0;
  to_all_.derive(key_, KeyScope::to_all(job_, incarnation));
  for (Session& session : sessions_) {
    session.begun = false;
    session.sessions = 0;
  }
}

WorkerSessions::Verdict WorkerSessions::check(const Datagram& datagram) {
  Session& session = sessions_[place(datagram.header.worker)];
  if (!session.begun) return Verdict::kNoSession;
  if (!session.from_worker.verify(datagram)) return Verdict::kBadMac;
  return session.replay.accept(datagram.header.sequence) ? Verdict::kGood : Verdict::kReplay;
}

WorkerSessions::Verdict WorkerSessions::check_hello(const Datagram& datagram, const protocol::HelloTerms& hello,
                                                    const protocol::Endpoint& from, Former former) {
  const uint16_t worker = datagram.header.worker;
  Session& session = sessions_[place(worker)];
  if (is_session(worker, hello.worker_nonce)) {
    // A late HELLO may be of an address that its sender has left.
    const bool is_latest = datagram.header.sequence > session.replay.highest();
    const Verdict verdict = check(datagram);
    if (verdict == Verdict::kGood && is_latest) session.endpoint = from;
    return verdict;
  }
  if (datagram.header.sequence == 0) return Verdict::kReplay;  // no session has it
  KeyScope scope{.use = KeyUse::kWorkerToAggregator,
                 .job = job_,
                 .incarnation = incarnation_,
                 .worker = worker,
                 .worker_nonce = hello.worker_nonce,
                 .aggregator_nonce = challenge_for(worker, hello.worker_nonce)};
  tried_.derive(key_, scope);
  if (!tried_.verify(datagram)) return Verdict::kBadMac;
  if (session.begun && former == Former::kStays) return Verdict::kOtherSession;
  scope.use = KeyUse::kAggregatorToWorker;
  std::swap(session.from_worker, tried_);
  session.to_worker.derive(key_, scope);
  session.begun = true;
  session.replay = {};
  session.worker_nonce = hello.worker_nonce;
  session.sent = 0;
  ++session.sessions;
  session.endpoint = from;
  return session.replay.accept(datagram.header.sequence) ? Verdict::kGood : Verdict::kReplay;
}

bool WorkerSessions::check_handshake(const Datagram& datagram) const {
  return datagram.header.sequence == 0 && handshake_[place(datagram.header.worker)].verify(datagram);
}

Nonce WorkerSessions::challenge_for(uint16_t worker, const Nonce& worker_nonce) const {
  return protocol::challenge_nonce(key_, job_, incarnation_, worker, worker_nonce, sessions_[place(worker)].sessions);
}

size_t WorkerSessions::seal_to_worker(uint16_t worker, DatagramHeader header, std::span<uint8_t> packet) {
  Session& session = sessions_[place(worker)];
  MILLRACE_CHECK(session.begun, worker);
  header.worker = worker;
  header.sequence = ++session.sent;
  return session.to_worker.seal(header, packet);
}

size_t WorkerSessions::seal_to_all(DatagramHeader header, std::span<uint8_t> packet) {
  header.worker = protocol::kAllWorkers;
  header.sequence = ++sent_to_all_;
  return to_all_.seal(header, packet);
}

size_t WorkerSessions::seal_handshake(uint16_t worker, DatagramHeader header, std::span<uint8_t> packet) const {
  header.worker = worker;
  header.sequence = 0;
  return handshake_[place(worker)].seal(header, packet);
}

bool WorkerSessions::may_notice(uint16_t worker, protocol::NoticeCode code, TimeNs now, TimeNs gap) {
  TimeNs& after = sessions_[place(worker)].notice_after[static_cast<size_t>(code)];
  if (now < after) return false;
  after = now + gap;
  return true;
}

}  // namespace millrace::switch_agg
