#include "worker/config/option_table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "protocol/job/job_spec_fields.h"
#include "tests/support/tree_paths.h"
#include "tests/worker/config/other_texts.h"
#include "worker/config/option_access.h"
#include "worker/config/option_text.h"
#include "worker/config/selection_text.h"

/// Every option of the visitors: its text, its default, its help, its bytes on the wire, and the sentence of the
/// comparison between workers. A new option needs its row in other_texts.h, and nothing else here.
namespace millrace::worker {
namespace {

using testing::kOtherTexts;

struct Tables {
  JobDraft draft = draft_of(JobConfig{});
  WorkerConfig worker;
  std::vector<Option> job = options_of(draft);
  std::vector<Option> me = options_of(worker);
  Tables() = default;
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;
};

TEST(OptionTable, EveryOptionHasAHelpADefaultAndAFlagOfItsOwn) {
  Tables tables;
  std::set<std::string> flags;
  std::set<std::string> names;
  for (const std::vector<Option>* table : {&tables.job, &tables.me}) {
    for (const Option& option : *table) {
      SCOPED_TRACE(option.name);
      EXPECT_TRUE(flags.insert(option.flag).second);
      EXPECT_TRUE(names.insert(option.name).second);
      EXPECT_FALSE(option.info.help.empty());
      EXPECT_FALSE(option.form.empty());
      EXPECT_TRUE(kOtherTexts.contains(option.name)) << "give it another text in other_texts.h";
      // The default's own text sets the default, but for texts that must not be empty.
      const std::string text = option.text();
      if (text.empty() && option.info.least > 0) continue;
      EXPECT_TRUE(option.set(text));
      EXPECT_EQ(option.text(), text);
    }
  }
  for (const auto& [name, text] : kOtherTexts) EXPECT_TRUE(names.contains(name)) << name << " is no option";
}

TEST(OptionTable, EveryTextIsReadAndPrintedBack) {
  Tables tables;
  for (std::vector<Option>* table : {&tables.job, &tables.me}) {
    for (const Option& option : *table) {
      SCOPED_TRACE(option.name);
      const std::string& other = kOtherTexts.at(option.name);
      EXPECT_NE(option.text(), other);
      const Status set = option.set(other);
      ASSERT_TRUE(set) << set.error().message;
      EXPECT_EQ(option.text(), other);
    }
  }
}

TEST(OptionTable, AWrongTextIsRefusedWithTheOptionsName) {
  Tables tables;
  for (std::vector<Option>* table : {&tables.job, &tables.me}) {
    for (const Option& option : *table) {
      const Status set = option.set("no such thing");
      if (set) {  // plain text takes every word
        EXPECT_EQ(option.text(), "no such thing") << option.name;
        continue;
      }
      EXPECT_EQ(set.error().code, ErrorCode::kInvalidArgument);
      EXPECT_TRUE(set.error().message.starts_with(option.name + ": ")) << set.error().message;
    }
  }
}

TEST(OptionTable, EveryOptionOfAJobIsOnTheWireAndComparedBetweenWorkers) {
  const size_t options = Tables().job.size();
  std::set<uint64_t> hashes;
  for (size_t at = 0; at < options; ++at) {
    Tables tables;
    const protocol::JobSpec before = tables.draft.spec;
    Option& option = tables.job[at];
    SCOPED_TRACE(option.name);
    ASSERT_TRUE(option.set(kOtherTexts.at(option.name)));
    const protocol::JobSpec& after = tables.draft.spec;
    EXPECT_NE(before, after);
    EXPECT_TRUE(hashes.insert(protocol::job_spec_hash(after)).second);
    const auto decoded = protocol::decode_job_spec(protocol::encode_job_spec(after));
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(*decoded, after);
    // The sentence begins with the option's name; of a group, with the group's: "switch: job 0 here, 9 there".
    std::string name = option.name;
    if (name.starts_with("switch_")) name.replace(6, 1, ": ");
    const std::string difference = protocol::first_difference(before, after);
    EXPECT_TRUE(difference.starts_with(name)) << difference;
    EXPECT_NE(difference.find(" there"), std::string::npos) << difference;
  }
}

TEST(OptionTable, EveryJobOptionSurvivesConversionToTypedOptionsAndBack) {
  const size_t options = Tables().job.size();
  for (size_t at = 0; at < options; ++at) {
    Tables tables;
    const auto set = [&](std::string_view name, std::string_view text) {
      ASSERT_TRUE(option_named(tables.job, name).set(text));
    };
    const std::string name = tables.job[at].name;
    SCOPED_TRACE(name);
    // Its owner.
    if (name == "mode") set("quorum", "2");
    if (name == "quorum" || name == "deadline" || name == "participants") set("mode", "partial");
    if (name.starts_with("switch_") || name == "grid") set("path", "switch");
    if (name == "store_begin") set("store", "sgd:0.1");
    set(name, kOtherTexts.at(name));
    const auto config = config_of(tables.draft);
    ASSERT_TRUE(config) << config.error().message;
    JobDraft again = draft_of(*config);
    EXPECT_EQ(again.spec, tables.draft.spec);
    EXPECT_EQ(again.grid_chosen, tables.draft.grid_chosen);
    EXPECT_EQ(again.switch_codec_chosen, tables.draft.switch_codec_chosen);
    EXPECT_EQ(*config, *config_of(again));
    EXPECT_NE(*config, JobConfig{});
  }
}

TEST(OptionTable, WhatDoesNotBelongTogetherIsRefusedWithTheOptionToChange) {
  const auto refusal = [](const std::map<std::string, std::string>& texts) {
    Tables tables;
    for (const auto& [name, text] : texts) EXPECT_TRUE(option_named(tables.job, name).set(text)) << name;
    const auto config = config_of(tables.draft);
    return config ? std::string("taken") : config.error().message;
  };
  EXPECT_EQ(refusal({}), "taken");
  EXPECT_EQ(
      refusal({{"quorum", "2"}}),
      "quorum belongs to modes partial and bounded_staleness, and this job has mode synchronous: change the mode, "
      "or leave quorum out");
  EXPECT_EQ(refusal({{"mode", "asynchronous"}, {"deadline", "1s"}}).substr(0, 16), "deadline belongs");
  EXPECT_EQ(refusal({{"mode", "bounded_staleness"}, {"participants", "2"}}).substr(0, 20), "participants belongs");
  for (const char* mode : {"partial", "bounded_staleness"}) {
    const std::string needs = "mode " + std::string(mode) + " needs a quorum or a deadline";
    EXPECT_EQ(refusal({{"mode", mode}}).substr(0, needs.size()), needs);
    EXPECT_EQ(refusal({{"mode", mode}, {"quorum", "2"}}), "taken");
    EXPECT_EQ(refusal({{"mode", mode}, {"deadline", "50ms"}}), "taken");
  }
  EXPECT_EQ(refusal({{"mode", "partial"}, {"participants", "2"}}), "taken");
  EXPECT_EQ(refusal({{"mode", "partial"}, {"participants", "2"}, {"staleness", "1"}}).substr(0, 27),
            "participants with staleness");
  for (const auto& [name, text] : kOtherTexts) {
    if (!name.starts_with("switch_") || name == "switch_key_file") continue;
    EXPECT_EQ(refusal({{name, text}}), name +
                                           " belongs to path switch, and this job has path server: set path switch, "
                                           "or leave " +
                                           name + " out");
  }
  EXPECT_EQ(refusal({{"grid", "4096:-9"}}),
            "grid belongs to path switch and reproducible jobs, and this job has neither: choose one of them, or leave "
            "grid out");
  EXPECT_EQ(refusal({{"grid", "4096:-9"}, {"reproducible", "on"}}), "taken");
  EXPECT_EQ(refusal({{"store_begin", "saved"}}),
            "store_begin belongs to a store, and this job has none: set store, or leave store_begin out");
}

TEST(OptionTable, AnUnknownNameIsRefusedWithTheNearestOne) {
  JobConfig job;
  const Status set = set_option(job, "codec_pu", "gap+raw");
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(set.error().message, "there is no option 'codec_pu'; did you mean 'codec_up'?");
  EXPECT_EQ(job, JobConfig{});
}

TEST(OptionTable, AMistypedWordIsRefusedWithTheNearestOne) {
  const struct {
    const char* option;
    const char* text;
    const char* meant;  ///< empty: none is near
  } cases[] = {
      {"mode", "asynchronos", "asynchronous"},
      {"mode", "late", ""},
      {"combine", "weighted-mean", "weighted_mean"},
      {"codec_error", "retian", "retain"},
      {"non_finite", "refus", "refuse"},
      {"path", "swtich", "switch"},
      {"initial_weights", "frist", "first"},
      {"store_begin", "saveed", "saved"},
      {"select", "top_k:0.01", "topk"},
      {"select", "threshold_resue:0.01", "threshold_reuse"},
      {"select", "topk:0.01:warmup=5", "warm_up"},
      {"select", "topk:2.5", ""},
      {"reselect", "topq:0.1", "topk"},
      {"codec_up", "bitmpa+raw", "bitmap"},
      {"codec_up", "gap+qsdg4", "qsgd4"},
      {"codec_up", "atuo", "auto"},
      {"codec_down", "bloom_p11:0.01", "bloom_p1"},
      {"momentum", "corection:0.9", "correction"},
      {"momentum", "nesterov:0.9:unmaskd", "unmasked"},
      {"store", "adagard:0.1", "adagrad"},
      {"switch_codec", "gpa+fixed16", "gap"},
      {"switch_codec", "gap+fixd16", "fixed16"},
  };
  for (const auto& one : cases) {
    Tables tables;
    const Status set = option_named(tables.job, one.option).set(one.text);
    ASSERT_FALSE(set) << one.option << ' ' << one.text;
    const std::string& sentence = set.error().message;
    const size_t at = sentence.find("did you mean '");
    if (*one.meant == 0) {
      EXPECT_EQ(at, std::string::npos) << sentence;
    } else {
      EXPECT_TRUE(sentence.ends_with("did you mean '" + std::string(one.meant) + "'?")) << sentence;
    }
  }
}

TEST(OptionTable, AGridOrASwitchCodecThatIsNoneIsRefusedWithTheForms) {
  const std::string grid = "is not a grid: 'auto' or BLOCK_INDICES:FIRST_EXPONENT, as 16384:-20";
  const std::string codec =
      "is not a switch_codec: 'auto' or INDEX+VALUE, as gap+fixed16, with INDEX raw, gap, bitmap or bloom, VALUE "
      "fixed16, fixed32, qsgd8 or qsgd4";
  const struct {
    const char* option;
    const char* text;
    std::string sentence;
  } cases[] = {
      {"grid", "", grid},
      {"grid", "16384", grid},
      {"grid", "16384:", grid},
      {"grid", ":-20", grid},
      {"grid", "16384:-20:1", grid},
      {"grid", "a:b", grid},
      {"switch_codec", "", codec},
      {"switch_codec", "gap", codec},
      {"switch_codec", "gap+fixed16+raw", codec},
      {"switch_codec", "gap+f32", codec},
      {"switch_codec", "dense+fixed16", codec},
      {"switch_codec", "gap+none", codec},
      {"switch_codec", "dens+fixed16", codec},
  };
  for (const auto& one : cases) {
    Tables tables;
    const Status set = option_named(tables.job, one.option).set(one.text);
    ASSERT_FALSE(set) << one.option << ' ' << one.text;
    EXPECT_EQ(set.error().message, std::string(one.option) + ": '" + one.text + "' " + one.sentence);
  }
}

TEST(OptionTable, ACountOfOneIsNoDensity) {
  for (const char* name : {"select", "reselect"}) {
    Tables tables;
    Option& option = option_named(tables.job, name);
    for (const char* text : {"topk:count=1", "topk:1", "topk:2"}) {
      ASSERT_TRUE(option.set(text)) << text;
      EXPECT_EQ(option.text(), text);
    }
    EXPECT_FALSE(option.set("topk:count=0"));
  }
  EXPECT_EQ(selection_text(OptionAccess::spec_of(Selection::top_k(Amount::count(1)))), "topk:count=1");
  EXPECT_EQ(reselect_text(OptionAccess::spec_of(Reselect::top_k(Amount::count(1), 4))), "topk:count=1:4");
}

TEST(OptionTable, ThePagesTableIsThatOfTheVisitors) {
  const std::string path = source_file("worker/OPTIONS.md");
  if (std::getenv("MILLRACE_WRITE_OPTIONS") != nullptr) std::ofstream(path) << options_markdown();
  std::ostringstream page;
  page << std::ifstream(path).rdbuf();
  EXPECT_TRUE(page.str() == options_markdown()) << "run this test with MILLRACE_WRITE_OPTIONS=1 to write " << path;
}

TEST(OptionAccess, ParametersThatACodeDoesNotUseAreNotInTheSpecification) {
  EXPECT_EQ(OptionAccess::spec_of(Momentum::none().unmasked()), OptionAccess::spec_of(Momentum::none()));
  const Codec plain(index::gap, value::raw);
  const Codec with_rate(IndexCode(3, 0.5), value::raw);
  const Codec with_bits(index::gap, ValueCode(1, {.bits = 7, .bucket = 9, .scale = QsgdScale::kL2Norm}));
  EXPECT_EQ(OptionAccess::spec_of(with_rate), OptionAccess::spec_of(plain));
  EXPECT_EQ(OptionAccess::spec_of(with_bits), OptionAccess::spec_of(plain));
  EXPECT_EQ(OptionAccess::spec_of(Codec(index::gap, ValueCode(6, {.bits = 3}))),
            OptionAccess::spec_of(Codec(index::gap, value::terngrad())));
  // Those that it uses stay as they are, wrong ones too: validate() refuses them.
  EXPECT_EQ(OptionAccess::spec_of(Codec(index::gap, value::qsgd(9))).qsgd_bits, 9U);
  EXPECT_EQ(OptionAccess::spec_of(Codec(index::bloom(1.0 / 3))).bloom_false_positive_rate, 1.0 / 3);
}

/// The named constructors of millrace/compression.h give the values of the command line's texts.
TEST(OptionAccess, Codecs_TheSameAsTheirTexts) {
  for (const IndexCodec* code : index_codecs()) {
    for (const ValueCodec* value : value_codecs()) {
      CodecSpec spec;
      spec.index = code->id();
      spec.value = value->id();
      EXPECT_EQ(OptionAccess::spec_of(OptionAccess::codec_of(spec)), spec);
    }
  }
  const std::map<std::string, IndexCode> codes = {
      {"raw", index::raw},
      {"bitmap", index::bitmap},
      {"gap", index::gap},
      {"elias_gamma", index::elias_gamma},
      {"elias_delta", index::elias_delta},
      {"rice", index::rice},
      {"golomb", index::golomb},
      {"adaptive", index::adaptive},
      {"run_length", index::run_length},
      {"huffman", index::huffman},
      {"roaring", index::roaring},
      {"streamvbyte", index::streamvbyte},
      {"delta_binary", index::delta_binary},
      {"delta_huffman", index::delta_huffman},
      {"bloom_p0", index::bloom()},
      {"bloom_naive", index::bloom_naive()},
      {"bloom_p1", index::bloom_p1()},
      {"bloom_p2", index::bloom_p2()},
      {"bloom_left", index::bloom_left()},
      {"bloom_middle", index::bloom_middle()},
      {"bloom_right", index::bloom_right()},
      {"bloom_blocked", index::bloom_blocked()},
  };
  for (const auto& [name, code] : codes) EXPECT_EQ(codec_text(OptionAccess::spec_of(Codec(code))), name);
  const std::map<std::string, ValueCode> values = {
      {"raw", value::raw},
      {"f16", value::f16},
      {"bf16", value::bf16},
      {"qsgd", value::qsgd(4)},
      {"qsgd_elias", value::qsgd_elias(4)},
      {"sign_mean", value::sign_mean},
      {"terngrad", value::terngrad()},
      {"onebit", value::onebit()},
      {"deflate", value::deflate},
      {"three_lc", value::three_lc()},
      {"sketchml", value::sketchml},
      {"skcompress", value::skcompress},
      {"sketchml_mean", value::sketchml_mean},
      {"skcompress_mean", value::skcompress_mean},
      {"quantile", value::quantile()},
      {"fit_poly", value::fit_poly},
      {"fit_dexp", value::fit_dexp},
      {"gspar_hybrid", value::gspar_hybrid},
      {"gspar_entropy", value::gspar_entropy},
  };
  for (const auto& [name, code] : values) {
    const CodecSpec spec = OptionAccess::spec_of(Codec(index::gap, code));
    EXPECT_EQ(find_value_codec(spec.value)->name(), name);
    EXPECT_EQ(codec_from_text(codec_text(spec)), spec) << name;
  }
}

TEST(OptionAccess, Selections_TheSameAsTheirTexts) {
  const std::map<std::string, Selection> selections_by_name = {
      {"none", Selection::all()},
      {"topk:0.25", Selection::top_k(0.25)},
      {"topk:1000", Selection::top_k(Amount::count(1'000))},
      {"threshold:0.5", Selection::threshold(0.5)},
      {"threshold_reuse:0.25:8", Selection::threshold_reuse(0.25, 8)},
      {"bucket_topk:0.25:64", Selection::bucket_top_k(0.25, 64)},
      {"trimmed:0.25:signs", Selection::trimmed(0.25).one_sign()},
      {"binary_search:0.25", Selection::binary_search(0.25)},
      {"sampled:0.25", Selection::sampled(0.25)},
      {"radix:0.25", Selection::radix(0.25)},
      {"by_size:0.25:dense=5", Selection::by_size(0.25).dense_first(5)},
      {"gaussian:0.25:warm_up=9", Selection::gaussian(0.25).warm_up(9)},
      {"random:0.25", Selection::random(0.25)},
      {"gspar:0.25:3", Selection::gspar(0.25, 3)},
      {"gspar_closed:0.5", Selection::gspar_closed(0.5)},
      {"uniform:0.25", Selection::uniform(0.25)},
  };
  for (const auto& [text, selection] : selections_by_name) {
    const auto spec = selection_from_text(text);
    ASSERT_TRUE(spec) << text;
    EXPECT_EQ(OptionAccess::spec_of(selection), *spec) << text;
    EXPECT_EQ(OptionAccess::selection_of(*spec), selection) << text;
  }
}

}  // namespace
}  // namespace millrace::worker
