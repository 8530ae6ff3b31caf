#pragma once

#include <variant>

#include "monitoring/trace/span_recorder.h"
#include "protocol/messages/messages.h"

namespace millrace::worker {

/// Records the handling of one message as a span, if its body is a `Body`. Other messages record nothing.
template <typename Body, monitoring::SpanName kName>
class MessageSpan {
 public:
  MessageSpan(monitoring::SpanRecorder& recorder, const protocol::Message& message) : timer_(recorder) {
    const auto* body = timer_.on() ? std::get_if<Body>(&message.body) : nullptr;
    is_one_ = body != nullptr;
    if (is_one_) span_ = {.step = body->step, .unit = body->part, .name = kName};
  }
  ~MessageSpan() {
    if (is_one_) timer_.end(span_);
  }
  MessageSpan(const MessageSpan&) = delete;
  MessageSpan& operator=(const MessageSpan&) = delete;

 private:
  monitoring::SpanTimer timer_;
  monitoring::Span span_;
  bool is_one_ = false;
};

using ContributionSpan = MessageSpan<protocol::Contribution, monitoring::SpanName::kSend>;
using UpdateSpan = MessageSpan<protocol::Update, monitoring::SpanName::kDecode>;

}  // namespace millrace::worker
