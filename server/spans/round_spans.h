#pragma once

#include <optional>

#include "monitoring/trace/span_recorder.h"
#include "protocol/messages/messages.h"
#include "server/base/actions.h"

namespace millrace::server {

/// Records the handling of one message as a span: admit for a contribution, threshold for another shard's magnitudes,
/// send for an update. Other messages, and a recorder that is off, record nothing.
class MessageSpan {
 public:
  MessageSpan(monitoring::SpanRecorder& recorder, const protocol::Message& message);
  ~MessageSpan() {
    if (span_) timer_.end(*span_);
  }
  MessageSpan(const MessageSpan&) = delete;
  MessageSpan& operator=(const MessageSpan&) = delete;

 private:
  monitoring::SpanTimer timer_;
  std::optional<monitoring::Span> span_;
};

/// Records a task's run as spans: decode, reduce, threshold, encode, merge, store. A task that sums, cuts and encodes
/// has one span for each of these stages.
class TaskSpans final : public StageWatch {
 public:
  TaskSpans(monitoring::SpanRecorder& recorder, Task& task);
  ~TaskSpans();
  TaskSpans(const TaskSpans&) = delete;
  TaskSpans& operator=(const TaskSpans&) = delete;

  void enter(TaskStage stage) override;

 private:
  monitoring::SpanTimer timer_;
  Task& task_;
  monitoring::Span span_;  ///< of the present stage
};

}  // namespace millrace::server
