// protocol/vectors/records.json: job specifications, summaries, histograms, and the numbers that both sides must find
// alike.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/hash.h"
#include "kernels/reduce/magnitude_histogram.h"
#include "protocol/container/container.h"
#include "protocol/job/job_spec_fields.h"
#include "protocol/job/layout.h"
#include "protocol/messages/log_digest.h"
#include "protocol/messages/participants.h"
#include "protocol/messages/shard_map.h"
#include "protocol/messages/summary_bytes.h"
#include "tests/protocol/example_messages.h"
#include "tests/protocol/vectors/vector_file.h"

namespace millrace::testing {
namespace {

const VectorFile kRecordFile{
    .name = "records.json",
    .format = "records",
    .change =
        "Raise the version of the format that holds them: kSpecVersion for job specifications, kProtocolVersion for "
        "what messages carry (protocol/wire/versions.md).",
};

/// Visits a specification's fields into JSON, under the names that errors and differences have.
class SpecJson {
 public:
  template <typename T>
  void field(std::string_view name, const T& value) {
    if constexpr (std::is_enum_v<T>) {
      json[std::string(name)] = std::to_underlying(value);
    } else {
      json[std::string(name)] = value;
    }
  }
  void field(std::string_view name, std::chrono::milliseconds value) {
    json[std::string(name) + "_ms"] = value.count();
  }
  template <typename T>
  void option(const protocol::OptionInfo& info, const T& value) {
    field(info.name, value);
  }
  void words(const protocol::OptionInfo& info, const std::string& text) { json[std::string(info.name)] = text; }
  template <typename T, typename Visit>
  void text(const protocol::OptionInfo& info, const T& part, const Visit& visit) {
    group(info.name, part, visit);
  }
  template <typename T, typename Visit>
  void group(std::string_view name, const T& part, const Visit& visit) {
    SpecJson inside;
    visit(inside, part);
    json[std::string(name)] = inside.json;
  }
  template <typename T, typename Visit>
  void optional(std::string_view name, const std::optional<T>& part, const Visit& visit) {
    json[std::string(name)] = nullptr;
    if (part) group(name, *part, visit);
  }

  VectorJson json = VectorJson::object();
};

VectorJson spec_json(const protocol::JobSpec& spec) {
  SpecJson visitor;
  protocol::fields::visit_job(visitor, spec);
  visitor.json["tensors"] = VectorJson::array();
  for (const protocol::TensorSpec& tensor : spec.tensors) {
    SpecJson of_tensor;
    protocol::fields::visit_tensor(of_tensor, tensor);
    visitor.json["tensors"].push_back(of_tensor.json);
  }
  return visitor.json;
}

protocol::JobSpec smallest_spec_of_vectors() {
  protocol::JobSpec spec;
  spec.name = "demo";
  spec.workers = 2;
  spec.tensors.push_back({.name = "w", .dimension = 16});
  return spec;
}

VectorJson layout_json(const protocol::JobSpec& spec, uint32_t shards) {
  const protocol::JobLayout layout = protocol::plan_layout(spec, shards);
  VectorJson json = {{"shards", shards}, {"hash", hex_number(layout_hash(layout))}};
  json["parts"] = VectorJson::array();
  for (const protocol::PartLayout& part : layout.parts) {
    json["parts"].push_back({{"bucket", part.bucket}, {"shard", part.shard}, {"begin", part.begin}, {"end", part.end}});
  }
  return json;
}

VectorJson spec_vector(const std::string& name, const protocol::JobSpec& spec) {
  const ByteBuffer bytes = encode_job_spec(spec);
  VectorJson json = {{"name", "job specification, " + name}, {"kind", "job specification"}};
  json["bytes"] = hex_text(bytes);
  json["hash"] = hex_number(hash64(bytes));
  json["layouts"] = {layout_json(spec, 1), layout_json(spec, 3)};
  json["decoded"] = spec_json(spec);
  return json;
}

VectorJson summary_json(const protocol::Summary& summary) {
  VectorJson json = {{"threshold", summary.threshold}, {"log_digest", hex_number(summary.log_digest)}};
  json["epochs"] = summary.epochs;
  json["workers"] = VectorJson::array();
  for (const protocol::SummaryEntry& entry : summary.workers) {
    json["workers"].push_back({{"worker", entry.worker},
                               {"incarnation", entry.incarnation},
                               {"last_step", entry.last_step},
                               {"counted_mask", entry.counted_mask},
                               {"sequence", entry.sequence},
                               {"entered", entry.entered},
                               {"carried", entry.carried},
                               {"lost", entry.lost},
                               {"earlier_incarnations", entry.earlier_incarnations}});
  }
  return json;
}

VectorJson summary_vector(const std::string& name, const protocol::Summary& summary) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  protocol::put_summary(writer, summary);
  return {{"name", "summary, " + name},
          {"kind", "summary"},
          {"bytes", hex_text(bytes)},
          {"decoded", summary_json(summary)}};
}

VectorJson histogram_bins(const MagnitudeHistogram& histogram) {
  VectorJson bins = VectorJson::array();
  for (const MagnitudeHistogram::Bin& one : histogram.bins()) bins.push_back({one.bin, one.count});
  return bins;
}

VectorJson histogram_vector(const std::string& name, const std::vector<float>& values) {
  MagnitudeHistogram histogram;
  histogram.add(values);
  ByteBuffer bytes;
  histogram.encode(bytes);
  const protocol::ThresholdHistogram body{.bucket = 2, .step = 12};
  VectorJson json = {{"name", "histogram, " + name}, {"kind", "histogram"}};
  put_values(json, "values", values);
  json["bytes"] = hex_text(bytes);
  json["payload_hash"] = {{"job", 7},
                          {"bucket", body.bucket},
                          {"step", body.step},
                          {"hash", hex_number(protocol::histogram_hash(7, body, bytes))}};
  json["decoded"] = histogram_bins(histogram);
  return json;
}

VectorJson digest_vector() {
  Stream stream = Stream::empty(16);
  stream.indices = {1, 4, 5};
  stream.values = {1, -2, 0.5F};
  const ByteBuffer payload = std::move(encode_container(stream.view(), {}, {})->bytes);
  VectorJson json = {{"name", "log digest"}, {"kind", "log digest"}, {"payload", hex_text(payload)}, {"part", 3}};
  json["steps"] = VectorJson::array();
  uint64_t digest = protocol::kLogDigestStart;
  for (uint64_t step = 0; step < 3; ++step) {
    protocol::Update update{
        .part = 3, .step = step, .contributors = {}, .weight_sum = static_cast<double>(step) + 0.5, .summary = {}};
    for (uint32_t worker = 0; worker <= step; ++worker) update.contributors.push_back({worker, 1});
    digest = extend_log_digest(digest, update, payload);
    json["steps"].push_back({{"step", step},
                             {"contributors", update.contributors.size()},
                             {"weight_sum", update.weight_sum},
                             {"digest", hex_number(digest)}});
  }
  return json;
}

VectorJson shard_map_vector() {
  const std::vector<protocol::ShardEntry> shards = {{"tcp://127.0.0.1:5555", 3}, {"tcp://[::1]:5556", 1}};
  VectorJson json = {{"name", "shard map"}, {"kind", "shard map"}};
  json["addresses"] = {shards[0].address, shards[1].address};
  json["hash"] = hex_number(protocol::shard_map_hash(shards));
  return json;
}

VectorJson participants_vector() {
  protocol::JobSpec spec = smallest_spec_of_vectors();
  spec.workers = 8;
  spec.mode = protocol::Mode::kPartial;
  spec.participants = 3;
  spec.seed = 42;
  std::vector<protocol::Member> members;
  for (uint32_t worker = 0; worker < spec.workers; ++worker) members.push_back({.worker = worker, .incarnation = 1});
  VectorJson json = {{"name", "participants"},
                     {"kind", "participants"},
                     {"seed", spec.seed},
                     {"members", spec.workers},
                     {"participants", spec.participants}};
  json["steps"] = VectorJson::array();
  for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{1} << 40}) {
    json["steps"].push_back({{"step", step}, {"workers", participants_of(spec, members, step)}});
  }
  return json;
}

VectorJson record_vectors() {
  VectorJson json = vector_file_head(kRecordFile);
  json["vectors"] = {spec_vector("the document's", smallest_spec_of_vectors()),
                     spec_vector("every field", protocol::example_spec()),
                     summary_vector("nothing", {}),
                     summary_vector("two workers", protocol::example_update().summary),
                     histogram_vector("nothing", {}),
                     histogram_vector("a few", {1, -1, 1.004F, 2, 0, 0x1p-126F, -0x1p100F, 1, 1, 1}),
                     digest_vector(),
                     shard_map_vector(),
                     participants_vector()};
  return json;
}

TEST(RecordVectors, TheCodeReproducesTheVectors) { expect_vectors(kRecordFile, record_vectors()); }

void expect_record_decodes(const VectorJson& vector) {
  const auto kind = vector.at("kind").get<std::string>();
  const ByteBuffer bytes = bytes_of(vector.at("bytes"));
  if (kind == "job specification") {
    const auto spec = protocol::decode_job_spec(bytes);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(spec_json(*spec), vector.at("decoded"));
    expect_truncations_refused(bytes,
                               [](const ByteBuffer& cut) { return !protocol::decode_job_spec(cut).has_value(); });
  } else if (kind == "summary") {
    protocol::FieldReader in(bytes);
    const protocol::Summary summary = protocol::get_summary(in);
    EXPECT_TRUE(in.good());
    EXPECT_EQ(summary_json(summary), vector.at("decoded"));
    expect_truncations_refused(bytes, [](const ByteBuffer& cut) {
      protocol::FieldReader of_cut(cut);
      protocol::get_summary(of_cut);
      return !of_cut.good();
    });
  } else {
    ASSERT_EQ(kind, "histogram");
    const auto histogram = MagnitudeHistogram::decode(bytes);
    ASSERT_TRUE(histogram) << histogram.error().message;
    EXPECT_EQ(histogram_bins(*histogram), vector.at("decoded"));
    expect_truncations_refused(bytes,
                               [](const ByteBuffer& cut) { return !MagnitudeHistogram::decode(cut).has_value(); });
  }
}

TEST(RecordVectors, DecodeAsTheySayAndNoTruncationIsRead) {
  const VectorJson file = read_vectors(kRecordFile);
  for (const VectorJson& vector : file.at("vectors")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    if (vector.contains("bytes")) expect_record_decodes(vector);
  }
}

}  // namespace
}  // namespace millrace::testing
