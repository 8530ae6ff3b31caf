#include "server/spans/round_spans.h"

#include <variant>

namespace millrace::server {

using monitoring::Span;
using monitoring::SpanName;

namespace {

std::optional<Span> span_of(const protocol::Message& message) {
  Span span{.job = message.header.job};
  if (const auto* contribution = std::get_if<protocol::Contribution>(&message.body)) {
    span.name = SpanName::kAdmit;
    span.step = contribution->step;
    span.unit = contribution->part;
    span.worker = static_cast<int32_t>(message.header.worker);
    return span;
  }
  if (const auto* update = std::get_if<protocol::Update>(&message.body)) {
    span.name = SpanName::kSend;
    span.step = update->step;
    span.unit = update->part;
    span.worker = static_cast<int32_t>(message.header.worker);
    return span;
  }
  if (const auto* histogram = std::get_if<protocol::ThresholdHistogram>(&message.body)) {
    span.name = SpanName::kThreshold;
    span.step = histogram->step;
    span.unit = histogram->bucket;
    span.unit_kind = monitoring::SpanUnit::kBucket;
    return span;
  }
  return std::nullopt;
}

SpanName name_of(Task::Kind kind) {
  switch (kind) {
    case Task::Kind::kDecode: return SpanName::kDecode;
    case Task::Kind::kReduce: return SpanName::kReduce;
    case Task::Kind::kQuota: return SpanName::kThreshold;
    case Task::Kind::kEncode: return SpanName::kEncode;
    case Task::Kind::kMerge: return SpanName::kMerge;
    case Task::Kind::kStore: return SpanName::kStore;
  }
  return SpanName::kReduce;
}

SpanName name_of(TaskStage stage) {
  switch (stage) {
    case TaskStage::kThreshold: return SpanName::kThreshold;
    case TaskStage::kEncode: return SpanName::kEncode;
  }
  return SpanName::kEncode;
}

}  // namespace

MessageSpan::MessageSpan(monitoring::SpanRecorder& recorder, const protocol::Message& message) : timer_(recorder) {
  if (timer_.on()) span_ = span_of(message);
}

TaskSpans::TaskSpans(monitoring::SpanRecorder& recorder, Task& task) : timer_(recorder), task_(task) {
  if (!timer_.on()) return;
  const TaskRound round = task.round();
  span_ = {.step = round.step,
           .job = task.job(),
           .unit = round.part,
           .worker = round.worker ? static_cast<int32_t>(*round.worker) : -1,
           .name = name_of(task.kind())};
  task.watch(this);
}

TaskSpans::~TaskSpans() {
  if (!timer_.on()) return;
  task_.watch(nullptr);
  timer_.end(span_);
}

void TaskSpans::enter(TaskStage stage) {
  const SpanName next = name_of(stage);
  if (next == span_.name) return;
  timer_.end(span_);
  span_.name = next;
}

}  // namespace millrace::server
