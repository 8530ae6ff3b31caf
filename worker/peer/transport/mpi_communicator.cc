#include "worker/peer/transport/mpi_communicator.h"

#include <mpi.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "worker/peer/transport/mpi_node.h"
#include "worker/peer/transport/mpi_yields.h"
#include "worker/peer/transport/shared_cpu.h"

namespace millrace::peer {
namespace {

/// A longer body is worth a message of its own: copying it twice costs more than a message.
constexpr size_t kWholeBodyBytesMax = 8192;
constexpr size_t kBodyBytesMax = std::numeric_limits<int>::max();  // MPI counts in int
constexpr size_t kAnnouncementBytes = kMessageHeaderBytes + sizeof(uint32_t);
constexpr size_t kReferenceBytes = kMessageHeaderBytes + sizeof(BodyReference);
constexpr size_t kSharedBodyBytesMax = 8 << 20;  // a few must not fill a segment

// Tags of MPI: what begins with a header, and bodies that were announced.
constexpr int kHeadTag = 1;
constexpr uint32_t kBodyTagMin = 2;
constexpr uint32_t kBodyTagMax = 32'767;  // every MPI has as many

constexpr uint64_t kBodyBytesAPoll = 256 << 10;

constexpr TimeNs kDrainMax = 2 * kNsPerS;
/// Times between polls: yields for `yields_for`, then sleeps, longer each time.
struct Pauses {
  TimeNs yields_for = 0;
  TimeNs sleep_min = 0;
  TimeNs sleep_max = 0;
};
// A sleeping thread wakes up tenths of a millisecond later where an idle core is a halted virtual one.
constexpr Pauses kIdlePauses{kNsPerMs, 5 * kNsPerUs, 50 * kNsPerUs};
// The scheduler puts a yielding thread behind a computing one until a tick of the clock (4 ms at 250 Hz). A waking
// thread goes before it.
constexpr Pauses kBackgroundPauses{0, 20 * kNsPerUs, 100 * kNsPerUs};
thread_local CoreShare core_share;

std::string mpi_communicator_text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<size_t>(length)};
}

Status checked(int code, const char* what) {
  if (code == MPI_SUCCESS) return {};
  return fail(ErrorCode::kIo, std::string(what) + ": " + mpi_communicator_text_of(code));
}

bool mpi_is_there() {
  int begun = 0, ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  return begun != 0 && ended == 0;
}

MpiThreads threads_of(int level) {
  switch (level) {
    case MPI_THREAD_MULTIPLE: return MpiThreads::kMultiple;
    case MPI_THREAD_SERIALIZED: return MpiThreads::kSerialized;
    case MPI_THREAD_FUNNELED: return MpiThreads::kFunneled;
    default: return MpiThreads::kSingle;
  }
}

int level_of(MpiThreads threads) {
  switch (threads) {
    case MpiThreads::kMultiple: return MPI_THREAD_MULTIPLE;
    case MpiThreads::kSerialized: return MPI_THREAD_SERIALIZED;
    case MpiThreads::kFunneled: return MPI_THREAD_FUNNELED;
    case MpiThreads::kSingle: break;
  }
  return MPI_THREAD_SINGLE;
}

TimeNs thread_cpu_ns() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return used.tv_sec * kNsPerS + used.tv_nsec;
}

void pause_for(TimeNs time) {
  const timespec until{.tv_sec = time / kNsPerS, .tv_nsec = time % kNsPerS};
  ppoll(nullptr, 0, &until, nullptr);
}

}  // namespace

std::string_view name_of(MpiThreads threads) {
  switch (threads) {
    case MpiThreads::kMultiple: return "multiple";
    case MpiThreads::kSerialized: return "serialized";
    case MpiThreads::kFunneled: return "funneled";
    case MpiThreads::kSingle: break;
  }
  return "single";
}

MpiThreads mpi_threads_of(std::string_view name) {
  for (const MpiThreads level : {MpiThreads::kFunneled, MpiThreads::kSerialized, MpiThreads::kMultiple}) {
    if (name == name_of(level)) return level;
  }
  return MpiThreads::kSingle;
}

Result<std::unique_ptr<MpiJob>> MpiJob::begin(MpiThreads wanted) {
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun != 0) return fail(ErrorCode::kUnavailable, "MPI was started before, and cannot be started again");
  int level = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, level_of(wanted), &level) != MPI_SUCCESS) {
    return fail(ErrorCode::kUnavailable, "MPI cannot be started");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return std::unique_ptr<MpiJob>(
      new MpiJob(static_cast<uint32_t>(rank), static_cast<uint32_t>(size), threads_of(level)));
}

MpiJob::~MpiJob() { MPI_Finalize(); }

Status MpiJob::sum_dense(std::span<float> values) {
  if (values.size() > kBodyBytesMax) {
    return fail(ErrorCode::kLimitExceeded, "MPI_Allreduce takes " + std::to_string(kBodyBytesMax) +
                                               " values at most, not " + std::to_string(values.size()));
  }
  return checked(
      MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
      "MPI_Allreduce");
}

void MpiJob::abort(int exit_code, uint32_t grace_ms) {
  pause_for(grace_ms * kNsPerMs);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

/// All that is in flight. One lock over it and over every call of MPI.
class MpiCommunicator::Links {
 public:
  Links(MPI_Comm comm, uint32_t rank, uint32_t size, MpiThreads level, std::unique_ptr<SharedBodies> shared)
      : rank_(rank), size_(size), comm_(comm), level_(level), shared_(std::move(shared)) {}

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }

  Status send(uint32_t to, PeerMessage message) {
    const std::lock_guard lock(mutex_);
    if (Status status = may_call(); !status) return status;
    const size_t body_bytes = message.body.bytes.size();
    if (body_bytes > kBodyBytesMax) {
      return fail(ErrorCode::kLimitExceeded, "a message of " + std::to_string(body_bytes) +
                                                 " bytes; MPI carries 2^31 - 1 at most: use more parts");
    }
    traffic_.bytes_sent += kMessageHeaderBytes + body_bytes;
    ++traffic_.messages_sent;
    if (body_bytes <= kWholeBodyBytesMax) return send_head(to, message, message.body.bytes);
    if (shared_ && shared_->reaches(to) && body_bytes <= kSharedBodyBytesMax) {
      if (const auto reference = shared_->hold(message.body.bytes)) return send_reference(to, message, *reference);
    }
    const uint32_t tag = next_body_tag_;
    next_body_tag_ = tag == kBodyTagMax ? kBodyTagMin : tag + 1;
    const auto tag_bytes = std::bit_cast<std::array<uint8_t, sizeof tag>>(tag);
    if (Status status = send_head(to, message, tag_bytes); !status) return status;
    return begin_send(to, static_cast<int>(tag), message.body.bytes, {.body = std::move(message.body), .head = {}});
  }

  WritableBody take_body(size_t bytes) {
    if (shared_ && bytes > kWholeBodyBytesMax && bytes <= kSharedBodyBytesMax) {
      const std::lock_guard lock(mutex_);
      if (std::optional<WritableBody> body = shared_->take(bytes)) return std::move(*body);
    }
    return heap_body(bytes);
  }

  Result<std::optional<ReceivedMessage>> receive() {
    const std::lock_guard lock(mutex_);
    if (arrived_.empty()) {
      if (Status status = may_call(); !status) return std::unexpected(status.error());
      poll();
    }
    if (!arrived_.empty()) {
      ReceivedMessage message = std::move(arrived_.front());
      arrived_.pop_front();
      return message;
    }
    // Once: wait() must sleep again after it.
    if (problem_) return std::unexpected(*std::exchange(problem_, std::nullopt));
    return std::nullopt;
  }

  std::optional<uint32_t> culprit() const {
    const std::lock_guard lock(mutex_);
    return culprit_;
  }

  void wait(TimeNs at_most, WaitAs as) {
    const TimeNs begin = monotonic_now_ns();
    const Pauses pauses = as == WaitAs::kIdle ? kIdlePauses : kBackgroundPauses;
    TimeNs sleep = pauses.sleep_min;
    if (as == WaitAs::kBackground) sleep = std::max(sleep, core_share.rests(begin, thread_cpu_ns()));
    while (!look()) {
      const TimeNs now = monotonic_now_ns(), waited = now - begin;
      if (waited >= at_most) break;
      if (waited < pauses.yields_for) {
        sched_yield();
        continue;
      }
      const TimeNs pause = std::min(sleep, at_most - waited);
      pause_for(pause);
      if (as == WaitAs::kBackground) {
        const TimeNs then = monotonic_now_ns();
        core_share.woke(then, then - now - pause);
      }
      sleep = std::clamp(2 * sleep, pauses.sleep_min, pauses.sleep_max);
    }
    core_share.works(monotonic_now_ns(), thread_cpu_ns());
  }

  void wake() { woken_ = true; }

  /// True: nothing is on its way in either direction.
  bool drain() {
    const TimeNs end = monotonic_now_ns() + kDrainMax;
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (!may_call() || broken_) return false;
        poll();
        arrived_.clear();
        if (send_requests_.empty()) return receive_requests_.empty();
      }
      if (monotonic_now_ns() >= end) return false;
      sched_yield();
    }
  }

  Traffic traffic() const {
    const std::lock_guard lock(mutex_);
    return traffic_;
  }

  SharedBodiesCounters counters() const {
    const std::lock_guard lock(mutex_);
    return shared_ ? shared_->counters() : SharedBodiesCounters{};
  }

 private:
  using Head = std::array<uint8_t, kMessageHeaderBytes + kWholeBodyBytesMax>;

  /// Keeps alive what MPI sends from.
  struct Sending {
    SharedBytes body;
    std::unique_ptr<Head> head;
  };
  /// Where MPI receives to; `announced` is the message that a body belongs to.
  struct Receiving {
    uint32_t from = 0;
    ByteBuffer bytes;
    std::optional<PeerMessage> announced;
  };

  /// MPI below `serialized` is the main thread's alone.
  Status may_call() const {
    if (level_ >= MpiThreads::kSerialized) return {};
    int is_main = 0;
    MPI_Is_thread_main(&is_main);
    if (is_main != 0) return {};
    return fail(ErrorCode::kUnsupported, "MPI was started for its main thread alone (thread level " +
                                             std::string(name_of(level_)) +
                                             "): collectives with a thread of their own need level serialized");
  }

  /// Sends the header, and the bytes after it, in one message of MPI.
  Status send_head(uint32_t to, const PeerMessage& message, ByteSpan rest) {
    std::unique_ptr<Head> head;
    if (free_heads_.empty()) {
      head = std::make_unique_for_overwrite<Head>();
    } else {
      head = std::move(free_heads_.back());
      free_heads_.pop_back();
    }
    const MessageHeader header = encode_header(message);
    std::memcpy(head->data(), header.data(), header.size());
    if (!rest.empty()) std::memcpy(head->data() + header.size(), rest.data(), rest.size());
    const ByteSpan bytes(head->data(), header.size() + rest.size());
    return begin_send(to, kHeadTag, bytes, {.body = {}, .head = std::move(head)});
  }

  /// Of a body that the receiver looks into where it lies.
  Status send_reference(uint32_t to, const PeerMessage& message, const BodyReference& reference) {
    const auto bytes = std::bit_cast<std::array<uint8_t, sizeof reference>>(reference);
    Status sent = send_head(to, message, bytes);
    if (!sent) shared_->let_go(reference);
    return sent;
  }

  Status begin_send(uint32_t to, int tag, ByteSpan bytes, Sending keep) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code =
        MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, static_cast<int>(to), tag, comm_, &request);
    if (code != MPI_SUCCESS) {
      return fail(ErrorCode::kUnavailable,
                  "rank " + std::to_string(to) + " cannot be reached: " + mpi_communicator_text_of(code));
    }
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) {
      release(std::move(keep));
      return {};
    }
    send_requests_.push_back(request);
    sending_.push_back(std::move(keep));
    return {};
  }

  void release(Sending&& sent) {
    constexpr size_t kFreeHeadsMax = 64;
    if (sent.head && free_heads_.size() < kFreeHeadsMax) free_heads_.push_back(std::move(sent.head));
  }

  /// True: there is something to do.
  bool look() {
    if (woken_.exchange(false)) return true;
    const std::lock_guard lock(mutex_);
    if (!may_call()) return false;
    if (arrived_.empty()) poll();
    return !arrived_.empty() || problem_.has_value();
  }

  /// Advances all sends and receives; an error is kept for receive().
  void poll() {
    if (broken_) return;
    try {
      Status status = take_heads();
      if (status) status = finish_receives();
      if (status) status = finish_sends();
      if (!status) problem_ = status.error();
    } catch (const std::bad_alloc&) {
      problem_ = Error{ErrorCode::kLimitExceeded, "no memory for the message of a peer"};
    }
    broken_ = problem_.has_value();
  }

  /// Begins to receive the messages that have arrived, of any length. A pass ends once it has begun kBodyBytesAPoll
  /// bytes of bodies, so that they are still in a cache when the reader gets them. On one machine MPI copies a body as
  /// soon as it is asked to.
  Status take_heads() {
    body_bytes_begun_ = 0;
    while (body_bytes_begun_ < kBodyBytesAPoll) {
      int found = 0;
      MPI_Message handle = MPI_MESSAGE_NULL;
      MPI_Status status;
      Status probed = checked(MPI_Improbe(MPI_ANY_SOURCE, kHeadTag, comm_, &found, &handle, &status), "MPI_Improbe");
      if (!probed || found == 0) return probed;
      int count = 0;
      MPI_Get_count(&status, MPI_BYTE, &count);
      Receiving receiving{.from = static_cast<uint32_t>(status.MPI_SOURCE), .bytes = {}, .announced = {}};
      // Also one that is too long is taken off MPI's hands, before it is refused.
      receiving.bytes.resize(static_cast<size_t>(std::max(count, 0)));
      MPI_Request request = MPI_REQUEST_NULL;
      if (Status begun = checked(MPI_Imrecv(receiving.bytes.data(), count, MPI_BYTE, &handle, &request), "MPI_Imrecv");
          !begun) {
        return begun;
      }
      int done = 0;
      if (Status tested = checked(MPI_Test(&request, &done, &status), "MPI_Test"); !tested) return tested;
      if (done == 0) {
        receive_requests_.push_back(request);
        receiving_.push_back(std::move(receiving));
        continue;
      }
      if (Status taken = take(std::move(receiving), status); !taken) return taken;
    }
    return {};
  }

  /// Takes completed requests out of two parallel arrays, and hands them on.
  template <typename Kept, typename Done>
  Status finish(std::vector<MPI_Request>& requests, std::vector<Kept>& kept, Done done) {
    if (requests.empty()) return {};
    int count = 0;
    which_.resize(requests.size());
    statuses_.resize(requests.size());
    if (Status tested = checked(
            MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count, which_.data(), statuses_.data()),
            "MPI_Testsome");
        !tested) {
      return tested;
    }
    if (count == MPI_UNDEFINED || count == 0) return {};
    std::vector<std::pair<Kept, MPI_Status>> ended;
    for (int i = 0; i < count; ++i) {
      ended.emplace_back(std::move(kept[static_cast<size_t>(which_[static_cast<size_t>(i)])]),
                         statuses_[static_cast<size_t>(i)]);
    }
    size_t to = 0;
    for (size_t from = 0; from < requests.size(); ++from) {
      if (requests[from] == MPI_REQUEST_NULL) continue;
      requests[to] = requests[from];
      if (to != from) kept[to] = std::move(kept[from]);
      ++to;
    }
    requests.resize(to);
    kept.erase(kept.begin() + static_cast<ptrdiff_t>(to), kept.end());
    for (auto& [one, status] : ended) {
      if (Status handed = done(std::move(one), status); !handed) return handed;
    }
    return {};
  }

  Status finish_receives() {
    return finish(receive_requests_, receiving_,
                  [this](Receiving&& one, const MPI_Status& status) { return take(std::move(one), status); });
  }

  Status finish_sends() {
    return finish(send_requests_, sending_, [this](Sending&& one, const MPI_Status&) {
      release(std::move(one));
      return Status{};
    });
  }

  Status take(Receiving&& received, const MPI_Status& status) {
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (count < 0 || static_cast<size_t>(count) != received.bytes.size())
      return bad(received.from, "is shorter than it said");
    if (!received.announced) {
      const uint32_t from = received.from;
      Status taken = take_head(std::move(received));
      if (!taken) culprit_ = from;
      return taken;
    }
    PeerMessage message = std::move(*received.announced);
    message.body = SharedBytes::from(std::move(received.bytes));
    arrive(received.from, std::move(message));
    return {};
  }

  Status take_head(Receiving&& received) {
    const ByteSpan bytes = received.bytes;
    if (bytes.size() < kMessageHeaderBytes) return bad(received.from, "is shorter than a header");
    Result<DecodedHeader> header = decode_header(bytes.first<kMessageHeaderBytes>());
    if (!header) return std::unexpected(header.error());
    if (header->body_bytes > kWholeBodyBytesMax && bytes.size() == kReferenceBytes) {
      return take_reference(received.from, std::move(*header), bytes.last<sizeof(BodyReference)>());
    }
    if (header->body_bytes > kWholeBodyBytesMax) {
      if (bytes.size() != kAnnouncementBytes) return bad(received.from, "announces a body without its tag");
      std::array<uint8_t, sizeof(uint32_t)> tag_bytes{};
      std::ranges::copy(bytes.subspan(kMessageHeaderBytes), tag_bytes.begin());
      return begin_body(received.from, std::move(*header), std::bit_cast<uint32_t>(tag_bytes));
    }
    if (bytes.size() != kMessageHeaderBytes + header->body_bytes)
      return bad(received.from, "has another length than it states");
    if (header->body_bytes > 0) {
      header->message.body = SharedBytes::from(std::move(received.bytes));
      header->message.body.bytes = header->message.body.bytes.subspan(kMessageHeaderBytes);
    }
    arrive(received.from, std::move(header->message));
    return {};
  }

  Status take_reference(uint32_t from, DecodedHeader header, std::span<const uint8_t, sizeof(BodyReference)> bytes) {
    if (!shared_) return bad(from, "refers to memory that is not shared");
    std::array<uint8_t, sizeof(BodyReference)> copy{};
    std::ranges::copy(bytes, copy.begin());
    Result<SharedBytes> body = shared_->body_of(std::bit_cast<BodyReference>(copy), header.body_bytes);
    if (!body) return std::unexpected(body.error());
    header.message.body = std::move(*body);
    arrive(from, std::move(header.message));
    return {};
  }

  Status begin_body(uint32_t from, DecodedHeader header, uint32_t tag) {
    if (header.body_bytes > kBodyBytesMax || tag < kBodyTagMin || tag > kBodyTagMax) {
      return bad(from, "announces a body that MPI does not carry");
    }
    Receiving receiving{.from = from, .bytes = {}, .announced = std::move(header.message)};
    receiving.bytes.resize(header.body_bytes);
    body_bytes_begun_ += header.body_bytes;
    MPI_Request request = MPI_REQUEST_NULL;
    if (Status begun = checked(MPI_Irecv(receiving.bytes.data(), static_cast<int>(receiving.bytes.size()), MPI_BYTE,
                                         static_cast<int>(from), static_cast<int>(tag), comm_, &request),
                               "MPI_Irecv");
        !begun) {
      return begun;
    }
    receive_requests_.push_back(request);
    receiving_.push_back(std::move(receiving));
    return {};
  }

  void arrive(uint32_t from, PeerMessage message) {
    traffic_.bytes_received += kMessageHeaderBytes + message.body.bytes.size();
    arrived_.push_back({from, std::move(message)});
  }

  Status bad(uint32_t from, const char* what) {
    culprit_ = from;
    return fail(ErrorCode::kMalformed, "a message of rank " + std::to_string(from) + " " + what);
  }

  const uint32_t rank_;
  const uint32_t size_;
  const MPI_Comm comm_;
  const MpiThreads level_;
  const std::unique_ptr<SharedBodies> shared_;  ///< null: bodies are sent
  std::atomic<bool> woken_ = false;

  mutable std::mutex mutex_;
  std::deque<ReceivedMessage> arrived_;
  std::optional<Error> problem_;     ///< for receive(), which takes it
  bool broken_ = false;              ///< there has been one
  std::optional<uint32_t> culprit_;  ///< the rank whose bytes the problem is about
  Traffic traffic_;
  uint32_t next_body_tag_ = kBodyTagMin;
  uint64_t body_bytes_begun_ = 0;  ///< in one poll
  std::vector<std::unique_ptr<Head>> free_heads_;
  // One request and what belongs to it, at the same place of both.
  std::vector<MPI_Request> send_requests_;
  std::vector<Sending> sending_;
  std::vector<MPI_Request> receive_requests_;
  std::vector<Receiving> receiving_;
  // Of MPI_Testsome.
  std::vector<int> which_;
  std::vector<MPI_Status> statuses_;
};

Result<std::unique_ptr<MpiCommunicator>> MpiCommunicator::over_world(const MpiOptions& options) {
  if (!mpi_is_there()) return fail(ErrorCode::kUnavailable, "MPI is not started (MPI_Init), or has ended");
  return over(MPI_Comm_c2f(MPI_COMM_WORLD), options);
}

Result<std::unique_ptr<MpiCommunicator>> MpiCommunicator::over(int fortran_handle, const MpiOptions& options) {
  if (!mpi_is_there()) return fail(ErrorCode::kUnavailable, "MPI is not started (MPI_Init), or has ended");
  const MPI_Comm parent = MPI_Comm_f2c(fortran_handle);
  MPI_Comm own = MPI_COMM_NULL;
  if (Status made = checked(MPI_Comm_dup(parent, &own), "MPI_Comm_dup"); !made) return std::unexpected(made.error());
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  int rank = 0, size = 1, level = MPI_THREAD_SINGLE;
  MPI_Comm_rank(own, &rank);
  MPI_Comm_size(own, &size);
  MPI_Query_thread(&level);
  return std::unique_ptr<MpiCommunicator>(
      new MpiCommunicator(std::make_unique<Links>(own, static_cast<uint32_t>(rank), static_cast<uint32_t>(size),
                                                  threads_of(level), share_bodies(own, options.shared_bytes_max))));
}

MpiCommunicator::MpiCommunicator(std::unique_ptr<Links> links) : links_(std::move(links)), yields_(mpi_yields()) {}

// The duplicate is not freed: MPI would give its number to the next communicator, which a late message would then come
// to.
MpiCommunicator::~MpiCommunicator() {
  if (!mpi_is_there() || links_->drain()) return;
  // MPI still sends from these buffers, or writes to them: they are never freed.
  static_cast<void>(links_.release());
}

uint32_t MpiCommunicator::rank() const { return links_->rank(); }
uint32_t MpiCommunicator::size() const { return links_->size(); }
uint64_t MpiCommunicator::body_bytes_max() const { return kBodyBytesMax; }

Status MpiCommunicator::send(uint32_t to, PeerMessage message) {
  MILLRACE_CHECK(to < size() && to != rank(), to, rank());
  return links_->send(to, std::move(message));
}

WritableBody MpiCommunicator::take_body(size_t bytes) { return links_->take_body(bytes); }
Result<std::optional<ReceivedMessage>> MpiCommunicator::receive() { return links_->receive(); }
std::optional<uint32_t> MpiCommunicator::culprit() const { return links_->culprit(); }
void MpiCommunicator::wait(TimeNs at_most, WaitAs as) { links_->wait(at_most, as); }
void MpiCommunicator::wake() { links_->wake(); }
Traffic MpiCommunicator::traffic() const { return links_->traffic(); }
SharedBodiesCounters MpiCommunicator::counters() const { return links_->counters(); }

}  // namespace millrace::peer
