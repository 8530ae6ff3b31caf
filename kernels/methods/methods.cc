#include "kernels/methods/methods.h"

#include <array>
#include <functional>

#include "kernels/base/registry.h"
#include "kernels/base/words.h"
#include "kernels/codec/codec.h"
#include "kernels/select/select.h"

namespace millrace {
namespace {

constexpr auto kMethods = std::to_array<Method>({
    {.name = "three_lc",
     .paper = "[ThreeLC19]",
     .summary =
         "ternary values of all entries, error fed back; the way down is not ternary: no process keeps its error",
     .codec_up = "gap+three_lc"},
    {.name = "sketchml",
     .paper = "[SketchML18]",
     .summary = "sparse gradients in quantile buckets and a MinMaxSketch; the error is dropped, which the paper leaves "
                "to Adam",
     .codec_up = "delta_binary+sketchml",
     .codec_error = "drop"},
    {.name = "skcompress",
     .paper = "[SKCompress20]",
     .summary = "SketchML with Huffman codes of the sketch and of the keys' prefixes",
     .codec_up = "delta_huffman+skcompress",
     .codec_error = "drop"},
    {.name = "dgc",
     .paper = "[DGC18]",
     .summary = "Deep Gradient Compression: top 0.1 % with momentum correction, masking, local clipping and warm-up; "
                "exact top-k, not a sample's; --clip is the model's own",
     .select = "topk:0.001:warm_up=400",
     .codec_up = "raw+raw",
     .momentum = "correction:0.9",
     .clip = 1},
    {.name = "sparcml",
     .paper = "[SparCML19, 8.3]",
     .summary = "the largest 4 of every 512, as index-value pairs",
     .select = "bucket_topk:0.0078125:512",
     .codec_up = "raw+raw"},
    {.name = "oktopk",
     .paper = "[OkTopk22]",
     .summary = "top 1 % by a threshold that is exact every 32 steps, and the globally largest 1 % of the sum, by "
                "another such one",
     .select = "threshold_reuse:0.01:32",
     .reselect = "topk:0.01",
     .threshold_period = 32,
     .codec_up = "raw+raw"},
    {.name = "redsync",
     .paper = "[RedSync19]",
     .summary = "top 0.1 % by the tensor's size, of one sign a step, sent as their mean, whose error is dropped; "
                "tensors of up to 4,096 entries and the first steps uncompressed; momentum correction with masking. "
                "The paper does not quantize an output layer; here a linear model's only tensor is quantized",
     .select = "by_size:0.001:signs:dense=400",
     .codec_up = "raw+sign_mean",
     .codec_error = "drop",
     .momentum = "correction:0.9"},
    {.name = "gspar",
     .paper = "[GSpar18]",
     .summary = "about 1 %, drawn by size and scaled so that the sent values are the gradient in expectation; the "
                "small ones as signs of one magnitude",
     .select = "gspar:0.01:2",
     .codec_up = "gap+gspar_hybrid",
     .codec_error = "drop",
     .unbiased = true},
    {.name = "deepreduce_fit_poly",
     .paper = "[DeepReduce21, 6.3]: Fit-Poly",
     .summary = "top 1 % with values as a polynomial in pieces over their order",
     .select = "topk:0.01",
     .codec_up = "raw+fit_poly"},
    {.name = "deepreduce_p2",
     .paper = "[DeepReduce21, 6.3]: BF-P2",
     .summary = "top 1 % with indices in a Bloom filter, policy P2, false positive rate 0.001",
     .select = "topk:0.01",
     .codec_up = "bloom_p2:0.001+raw"},
    {.name = "deepreduce_p0_qsgd",
     .paper = "[DeepReduce21, 6.3]: BF-P0 with QSGD",
     .summary =
         "sparse gradients in a Bloom filter, policy P0, false positive rate 0.01, with 8 bits a value; the paper's 7 "
         "bits and rate 0.6 are for gradients of which 60 % are not 0",
     .codec_up = "bloom_p0:0.01+qsgd8"},
});

std::unexpected<Error> refuse_method(const Method& method, const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, "method " + std::string(method.name) + " " + what);
}

}  // namespace

std::span<const Method> methods() { return kMethods; }

const Method* find_method(std::string_view name) {
  for (const Method& method : methods()) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

std::string method_names() { return listed_texts(methods(), std::mem_fn(&Method::name)); }

Result<std::string> method_select(const Method& method, std::string_view amount) {
  const auto words = split(method.select, ':');
  const auto selection = selection_by_name(words[0]);
  if (!selection) return std::unexpected(selection.error());
  if (find_selection(*selection)->amount() != SelectionAmount::kShare) {
    return refuse_method(method, "has no density: its selection is " + std::string(method.select));
  }
  std::string text = std::string(words[0]) + ':' + std::string(amount);
  for (size_t i = 2; i < words.size(); ++i) text += ':' + std::string(words[i]);
  if (const auto spec = selection_from_text(text); !spec) return std::unexpected(spec.error());
  return text;
}

Status check_method(const Method& method, std::string_view select, std::string_view codec_up) {
  const auto own_select = selection_from_text(method.select);
  const auto own_codec = codec_from_text(method.codec_up);
  const auto given_select = selection_from_text(select);
  const auto given_codec = codec_from_text(codec_up);
  for (const auto* spec : {&own_select, &given_select}) {
    if (!*spec) return std::unexpected(spec->error());
  }
  for (const auto* spec : {&own_codec, &given_codec}) {
    if (!*spec) return std::unexpected(spec->error());
  }
  if (own_select->selection != SelectionId::kNone && given_select->selection != own_select->selection) {
    return refuse_method(method, "selects by " + std::string(method.select) + ": " + std::string(select) +
                                     " would make another method of it");
  }
  if (given_codec->automatic || given_codec->index != own_codec->index || given_codec->value != own_codec->value) {
    return refuse_method(method, "has codec " + std::string(method.codec_up) + ": " + std::string(codec_up) +
                                     " would make another method of it");
  }
  return {};
}

}  // namespace millrace
