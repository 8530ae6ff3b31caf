#include "worker/bench/rounds/serve_compare.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/bench/rounds/serve_row.h"

namespace millrace::bench {
namespace {

using nlohmann::json;

json compared_row(const char* name, const char* links, bool audit, bool keys, double round_ms) {
  return {{"row", name}, {"links", links}, {"audit", audit}, {"keys", keys}, {"round_ms", round_ms}};
}

/// Returns the ratio of a row; 0 where it has none.
double ratio_of(const json& row, const std::string& name) { return row.value(name, 0.0); }

TEST(ServeCompare, ARowIsOverTheSameRowWithoutTheAuditOrWithoutKeys) {
  json rows = {
      compared_row("lossless", kPlainLinks, false, false, 2), compared_row("qsgd4", kPlainLinks, false, true, 9),
      compared_row("lossless", kPlainLinks, false, true, 6),  compared_row("lossless", kPlainLinks, true, false, 8),
      compared_row("lossless", kPlainLinks, true, true, 40),  compared_row("lossless", kLossyLinks, false, true, 50)};
  compare_variants(rows);
  EXPECT_EQ(ratio_of(rows[0], "ratio_to_without_keys"), 0);
  EXPECT_EQ(ratio_of(rows[0], "audit_ratio"), 0);
  EXPECT_EQ(ratio_of(rows[1], "ratio_to_without_keys"), 0) << "no such row was measured without keys";
  EXPECT_EQ(ratio_of(rows[2], "ratio_to_without_keys"), 3);
  EXPECT_EQ(ratio_of(rows[3], "audit_ratio"), 4);
  EXPECT_EQ(ratio_of(rows[3], "ratio_to_without_keys"), 0);
  EXPECT_EQ(ratio_of(rows[4], "ratio_to_without_keys"), 5);
  EXPECT_DOUBLE_EQ(ratio_of(rows[4], "audit_ratio"), 40.0 / 6);
  EXPECT_EQ(ratio_of(rows[5], "ratio_to_without_keys"), 0) << "other links";
}

TEST(ServeCompare, ARowHasTheVariantsThatTheOptionsAskFor) {
  const auto titles = [](ServeAudit audit, const std::string& keys) {
    std::vector<std::string> all;
    RowSetup lossless;
    lossless.name = "lossless";
    for (const RowSetup& row : variants_of(lossless, audit, keys)) {
      all.push_back(row.title());
      EXPECT_TRUE(row.keys.empty() || row.keys == keys);
    }
    return all;
  };
  using Titles = std::vector<std::string>;
  EXPECT_EQ(titles(ServeAudit::kOff, ""), Titles({"lossless"}));
  EXPECT_EQ(titles(ServeAudit::kOn, ""), Titles({"lossless+audit"}));
  EXPECT_EQ(titles(ServeAudit::kBoth, ""), Titles({"lossless", "lossless+audit"}));
  EXPECT_EQ(titles(ServeAudit::kOff, "keys"), Titles({"lossless", "lossless+keys"}));
  EXPECT_EQ(titles(ServeAudit::kBoth, "keys"),
            Titles({"lossless", "lossless+keys", "lossless+audit", "lossless+audit+keys"}));
}

TEST(ServeCompare, ALossyRowIsOverTheSameRowWithoutLosses) {
  json rows = {compared_row("lossless", kPlainLinks, false, false, 2),
               compared_row("lossless", kPlainLinks, false, true, 4),
               compared_row("lossless", kLossyLinks, false, true, 12)};
  compare_losses(rows);
  EXPECT_EQ(ratio_of(rows[2], "ratio_to_plain_links"), 3);
}

}  // namespace
}  // namespace millrace::bench
