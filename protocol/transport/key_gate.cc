#include "protocol/transport/key_gate.h"

#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>

#include "protocol/transport/zmq_frame.h"

namespace millrace::protocol {
namespace {

constexpr const char* kZapAddress = "inproc://zeromq.zap.01";
constexpr std::string_view kZapVersion = "1.0";
/// version, request id, domain, address, identity, mechanism, and of CURVE the key.
constexpr size_t kZapFrames = 7;
constexpr size_t kZapAddressBytesMax = 256;
enum ZapFrame : uint8_t { kVersionFrame = 0, kRequestFrame = 1, kAddressFrame = 3, kMechanismFrame = 5, kKeyFrame = 6 };

/// A frame of a question or an answer.
struct ZapMessage : ZmqFrame {
  bool copy_text(std::string_view text) { return copy(text.data(), text.size()); }
  std::string_view text() const {
    return {static_cast<const char*>(zmq_msg_data(const_cast<zmq_msg_t*>(&message))), zmq_msg_size(&message)};
  }
};

/// One question of ZeroMQ's. Takes no memory: without an answer to each question the socket takes no more of them.
class ZapQuestion {
 public:
  /// Reads the next question. Frames beyond the expected ones are read and dropped. False: there is none.
  bool receive(void* socket) {
    for (bool more = true; more; ++count_) {
      ZapMessage& frame = count_ < kZapFrames ? frames_[count_] : surplus_;
      while (zmq_msg_recv(&frame.message, socket, ZMQ_DONTWAIT) < 0) {
        if (zmq_errno() != EINTR) return false;
      }
      more = zmq_msg_more(&frame.message) != 0;
    }
    return true;
  }
  bool is_well_formed() const {
    return count_ == kZapFrames && frames_[kVersionFrame].text() == kZapVersion &&
           frames_[kAddressFrame].text().size() <= kZapAddressBytesMax && frames_[kMechanismFrame].text() == "CURVE" &&
           frames_[kKeyFrame].text().size() == kKeyBytes;
  }
  std::string_view request() const { return frames_[kRequestFrame].text(); }
  /// REQUIRES: is_well_formed().
  KeyGate::Caller caller() const {
    constexpr std::string_view kMapped = "::ffff:";
    KeyGate::Caller caller;
    std::memcpy(caller.key.bytes.data(), frames_[kKeyFrame].text().data(), kKeyBytes);
    std::string_view address = frames_[kAddressFrame].text();
    if (address.starts_with(kMapped)) address.remove_prefix(kMapped.size());
    caller.address = address;
    return caller;
  }

 private:
  std::array<ZapMessage, kZapFrames> frames_;
  ZapMessage surplus_;
  size_t count_ = 0;
};

using ZapAnswer = std::array<ZapMessage, 6>;

/// Fills an answer. False: there is no memory for it. `user` is empty: no.
bool fill_answer(ZapAnswer& answer, std::string_view request, std::string_view user) {
  const bool accepted = !user.empty();
  const std::array<std::string_view, 6> texts = {
      kZapVersion, request, accepted ? "200" : "400", accepted ? "OK" : "no such key", user, ""};
  for (size_t at = 0; at < texts.size(); ++at) {
    if (!answer[at].copy_text(texts[at])) return false;
  }
  return true;
}

void send_answer(void* socket, ZapAnswer& answer) {
  for (size_t at = 0; at < answer.size(); ++at) {
    const int flags = at + 1 < answer.size() ? ZMQ_SNDMORE | ZMQ_DONTWAIT : ZMQ_DONTWAIT;
    while (zmq_msg_send(&answer[at].message, socket, flags) < 0 && zmq_errno() == EINTR) {
    }
  }
}

/// Returns the digits of the key that a question is about; empty: it may not connect, or memory has ended.
std::string accepted_user(const ZapQuestion& question, const KeyGate::Judge& judge) {
  if (!question.is_well_formed()) return {};
  try {
    const KeyGate::Caller caller = question.caller();
    return judge(caller) ? key_digits(caller.key) : std::string();
  } catch (const std::bad_alloc&) {
    return {};
  }
}

}  // namespace

Result<std::unique_ptr<KeyGate>> KeyGate::open(TransportContext& context) {
  if (const Status& can = context.threads_can_start(); !can) return std::unexpected(can.error());
  void* handle = zmq_socket(context.handle(), ZMQ_REP);
  if (handle == nullptr)
    return fail(ErrorCode::kIo, std::string("cannot open the socket that judges keys: ") + zmq_strerror(zmq_errno()));
  std::unique_ptr<KeyGate> gate(new KeyGate(handle));
  const int linger = 0;
  zmq_setsockopt(handle, ZMQ_LINGER, &linger, sizeof(linger));
  if (zmq_bind(handle, kZapAddress) != 0)
    return fail(ErrorCode::kIo, std::string("cannot judge keys: ") + zmq_strerror(zmq_errno()));
  return gate;
}

KeyGate::~KeyGate() { zmq_close(handle_); }

void KeyGate::answer(const Judge& judge) {
  for (int count = 0; count < kAnswersPerCall && answer_one(judge); ++count) {
  }
}

bool KeyGate::answer_one(const Judge& judge) {
  ZapQuestion question;
  if (!question.receive(handle_)) return false;
  ZapAnswer answer;
  if (!fill_answer(answer, question.request(), accepted_user(question, judge)) &&
      !fill_answer(answer, question.request(), {})) {
    fill_answer(answer, {}, {});  // ZeroMQ ends the connection whose question has another number
  }
  send_answer(handle_, answer);
  return true;
}

}  // namespace millrace::protocol
