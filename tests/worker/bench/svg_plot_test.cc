#include "worker/bench/converge/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace millrace::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(AxisTicks, OfALinearAxisAreRoundNumbersWithin) {
  EXPECT_THAT(axis_ticks(0, 600, AxisScale::kLinear), ElementsAre(0, 100, 200, 300, 400, 500, 600));
  EXPECT_THAT(axis_ticks(3, 17, AxisScale::kLinear), ElementsAre(5, 10, 15));
  EXPECT_THAT(axis_ticks(-1, 1, AxisScale::kLinear), ElementsAre(-1, -0.5, 0, 0.5, 1));
}

TEST(AxisTicks, OfALogarithmicAxisAreDecades) {
  EXPECT_THAT(axis_ticks(1000, 1e6, AxisScale::kLogarithmic), ElementsAre(1e3, 1e4, 1e5, 1e6));
}

TEST(AxisTicks, OfAShortLogarithmicAxisAreDoublesAndFivefoldsToo) {
  EXPECT_THAT(axis_ticks(8, 70, AxisScale::kLogarithmic), ElementsAre(10, 20, 50));
}

TEST(AxisTicks, OfALogarithmicAxisWithoutAnyOfTheseAreLinear) {
  EXPECT_THAT(axis_ticks(24, 40, AxisScale::kLogarithmic), ElementsAre(25, 30, 35, 40));
}

TEST(TickText, NamesThousandsByLetter) {
  EXPECT_EQ(tick_text(0), "0");
  EXPECT_EQ(tick_text(0.5), "0.5");
  EXPECT_EQ(tick_text(250), "250");
  EXPECT_EQ(tick_text(1500), "1.5k");
  EXPECT_EQ(tick_text(3e8), "300M");
  EXPECT_EQ(tick_text(-2e9), "-2G");
}

PlotPanel panel_of(AxisScale x, std::vector<PlotPoint> points) {
  return {{"x", x}, {"y", AxisScale::kLinear}, {{"one", std::move(points)}}};
}

TEST(PlotSvg, PutsTheLeastAndTheGreatestPointIntoTheCorners) {
  // The frame of a panel is 402 by 252 from (62, 40).
  const std::string svg = plot_svg("title", std::vector{panel_of(AxisScale::kLinear, {{0, 8}, {4, 0}, {2, 4}})});
  EXPECT_THAT(svg, HasSubstr(R"(<polyline points="62.0,40.0 464.0,292.0 263.0,166.0")"));
}

TEST(PlotSvg, OfALogarithmicAxisSpacesFactorsEqually) {
  const std::string svg =
      plot_svg("title", std::vector{panel_of(AxisScale::kLogarithmic, {{1, 0}, {100, 0}, {10000, 1}})});
  EXPECT_THAT(svg, HasSubstr(R"(points="62.0,292.0 263.0,292.0 464.0,40.0")"));
}

TEST(PlotSvg, OmitsPointsThatAnAxisCannotShow) {
  const double infinite = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg = plot_svg(
      "title", std::vector{panel_of(AxisScale::kLogarithmic, {{0, 5}, {1, 0}, {2, infinite}, {3, nan}, {100, 1}})});
  EXPECT_THAT(svg, HasSubstr(R"(points="62.0,292.0 464.0,40.0")"));
}

TEST(PlotSvg, OfOnePointOrNoneIsAPlotAsWell) {
  EXPECT_THAT(plot_svg("t", std::vector{panel_of(AxisScale::kLogarithmic, {{4, 4}})}), Not(HasSubstr("nan")));
  EXPECT_THAT(plot_svg("t", std::vector{panel_of(AxisScale::kLogarithmic, {{0, 1}})}), HasSubstr("no points"));
}

TEST(PlotSvg, HasEverySeriesInEveryPanelAndOnceInTheLegend) {
  PlotPanel panel = panel_of(AxisScale::kLinear, {{0, 0}, {1, 1}});
  panel.series.push_back({"two", {{0, 1}, {1, 0}}});
  const std::string svg = plot_svg("title", std::vector{panel, panel});
  EXPECT_EQ(count_of(svg, "<polyline"), 4);
  EXPECT_EQ(count_of(svg, ">one</text>"), 1);
  EXPECT_EQ(count_of(svg, ">two</text>"), 1);
}

TEST(PlotSvg, EscapesWhatWouldBeMarkup) {
  PlotPanel panel = panel_of(AxisScale::kLinear, {{0, 0}, {1, 1}});
  panel.series[0].name = "a<b>&\"c";
  EXPECT_THAT(plot_svg("<t>", std::vector{panel}), HasSubstr("a&lt;b&gt;&amp;&quot;c"));
  EXPECT_THAT(plot_svg("<t>", std::vector{panel}), HasSubstr(">&lt;t&gt;</text>"));
}

}  // namespace
}  // namespace millrace::bench
