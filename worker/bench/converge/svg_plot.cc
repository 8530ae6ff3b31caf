#include "worker/bench/converge/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include "kernels/base/check.h"
#include "monitoring/http/status_page.h"

namespace millrace::bench {
namespace {

constexpr double kPanelWidth = 480;
constexpr double kPanelHeight = 340;
constexpr double kLeft = 62;  // of a panel, for the numbers of its axis
constexpr double kRight = 16;
constexpr double kTop = 40;
constexpr double kBottom = 48;
constexpr double kLegendRow = 20;
constexpr size_t kLegendColumns = 4;
constexpr double kTicksWanted = 6;

// Colours that most eyes can distinguish (Okabe and Ito), and dashes for the others.
constexpr std::array<std::string_view, 8> kColours = {"#000000", "#0072b2", "#d55e00", "#009e73",
                                                      "#cc79a7", "#e69f00", "#56b4e9", "#7f5f3f"};
constexpr std::array<std::string_view, 3> kDashes = {"none", "7 3", "2 3"};

std::string stroke(size_t series) {
  return fmt::format(R"(stroke="{}" stroke-dasharray="{}")", kColours[series % kColours.size()],
                     kDashes[series / 3 % kDashes.size()]);
}

std::vector<double> linear_ticks(double least, double most) {
  const double rough = (most - least) / kTicksWanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double slack = step * 1e-9;  // a bound that is a multiple itself, rounded
  for (double at = std::ceil((least - slack) / step); at * step <= most + slack; ++at) ticks.push_back(at * step);
  return ticks;
}

std::vector<double> logarithmic_ticks(double least, double most) {
  const auto within = [&](std::initializer_list<double> factors) {
    std::vector<double> ticks;
    for (double decade = std::floor(std::log10(least)); decade <= std::log10(most); ++decade) {
      for (const double factor : factors) {
        const double tick = factor * std::pow(10, decade);
        if (tick >= least * (1 - 1e-9) && tick <= most * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    return ticks;
  };
  if (std::vector<double> ticks = within({1}); ticks.size() >= 3) return ticks;
  if (std::vector<double> ticks = within({1, 2, 5}); ticks.size() >= 3) return ticks;
  return linear_ticks(least, most);
}

/// An axis with its range: values to the unit interval.
class Range {
 public:
  explicit Range(AxisScale scale) : scale_(scale) {}

  bool shows(double value) const { return std::isfinite(value) && (scale_ == AxisScale::kLinear || value > 0); }
  void include(double value) {
    least_ = std::min(least_, value);
    most_ = std::max(most_, value);
  }
  bool empty() const { return least_ > most_; }
  /// One value alone gets room on both sides.
  void widen() {
    if (least_ < most_) return;
    const double room = least_ == 0 ? 1 : std::abs(least_) / 2;
    least_ -= room;
    most_ += room;
  }
  double at(double value) const { return (of(value) - of(least_)) / (of(most_) - of(least_)); }
  std::vector<double> ticks() const { return axis_ticks(least_, most_, scale_); }

 private:
  double of(double value) const { return scale_ == AxisScale::kLinear ? value : std::log10(value); }
  AxisScale scale_;
  double least_ = std::numeric_limits<double>::infinity();
  double most_ = -std::numeric_limits<double>::infinity();
};

/// One panel at its place in the document.
class PanelDrawing {
 public:
  PanelDrawing(const PlotPanel& panel, double left) : panel_(panel), left_(left), x_(panel.x.scale), y_(panel.y.scale) {
    for (const PlotSeries& series : panel.series) {
      for (const PlotPoint& point : series.points) {
        if (!shown(point)) continue;
        x_.include(point.x);
        y_.include(point.y);
      }
    }
  }

  void draw(std::string& svg) {
    const auto out = std::back_inserter(svg);
    fmt::format_to(out,
                   R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="none" stroke="#888"/>)"
                   "\n",
                   left_ + kLeft, kTop, inner_width(), inner_height());
    fmt::format_to(out,
                   R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)"
                   "\n",
                   left_ + kLeft + inner_width() / 2, kPanelHeight - 8, monitoring::escape_html(panel_.x.title));
    fmt::format_to(out,
                   R"(<text x="{:.1f}" y="{:.1f}">{}</text>)"
                   "\n",
                   left_ + 8, kTop - 10, monitoring::escape_html(panel_.y.title));
    if (x_.empty()) {
      fmt::format_to(out,
                     R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">no points</text>)"
                     "\n",
                     left_ + kLeft + inner_width() / 2, kTop + inner_height() / 2);
      return;
    }
    x_.widen();
    y_.widen();
    draw_ticks(svg);
    for (size_t at = 0; at < panel_.series.size(); ++at) draw_series(svg, at);
  }

 private:
  static double inner_width() { return kPanelWidth - kLeft - kRight; }
  static double inner_height() { return kPanelHeight - kTop - kBottom; }
  bool shown(const PlotPoint& point) const { return x_.shows(point.x) && y_.shows(point.y); }
  double place_x(double value) const { return left_ + kLeft + x_.at(value) * inner_width(); }
  double place_y(double value) const { return kTop + (1 - y_.at(value)) * inner_height(); }

  void draw_ticks(std::string& svg) const {
    const auto out = std::back_inserter(svg);
    for (const double tick : x_.ticks()) {
      const double x = place_x(tick);
      fmt::format_to(out, R"(<path d="M{:.1f} {:.1f}V{:.1f}" stroke="#ddd"/>)", x, kTop, kTop + inner_height());
      fmt::format_to(out,
                     R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)"
                     "\n",
                     x, kTop + inner_height() + 16, tick_text(tick));
    }
    for (const double tick : y_.ticks()) {
      const double y = place_y(tick);
      fmt::format_to(out, R"(<path d="M{:.1f} {:.1f}H{:.1f}" stroke="#ddd"/>)", left_ + kLeft, y,
                     left_ + kLeft + inner_width());
      fmt::format_to(out,
                     R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)"
                     "\n",
                     left_ + kLeft - 6, y + 4, tick_text(tick));
    }
  }

  void draw_series(std::string& svg, size_t at) const {
    std::string points;
    for (const PlotPoint& point : panel_.series[at].points) {
      if (shown(point)) points += fmt::format("{:.1f},{:.1f} ", place_x(point.x), place_y(point.y));
    }
    if (points.empty()) return;
    points.pop_back();
    svg += fmt::format(R"(<polyline points="{}" fill="none" stroke-width="1.6" {}/>)"
                       "\n",
                       points, stroke(at));
  }

  const PlotPanel& panel_;
  double left_;
  Range x_;
  Range y_;
};

void draw_legend(std::string& svg, const std::vector<PlotSeries>& series, double width) {
  const double column = (width - kLeft) / static_cast<double>(kLegendColumns);
  for (size_t at = 0; at < series.size(); ++at) {
    const double x = kLeft + column * static_cast<double>(at % kLegendColumns);
    const size_t row = at / kLegendColumns;
    const double y = kPanelHeight + kLegendRow * (0.7 + static_cast<double>(row));
    svg += fmt::format(R"(<path d="M{:.1f} {:.1f}h26" stroke-width="2.4" {}/>)", x, y, stroke(at));
    svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}">{}</text>)"
                       "\n",
                       x + 32, y + 4, monitoring::escape_html(series[at].name));
  }
}

}  // namespace

std::vector<double> axis_ticks(double least, double most, AxisScale scale) {
  MILLRACE_CHECK(std::isfinite(least) && std::isfinite(most) && least < most, least, most);
  MILLRACE_CHECK(scale == AxisScale::kLinear || least > 0, least);
  return scale == AxisScale::kLinear ? linear_ticks(least, most) : logarithmic_ticks(least, most);
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:.4g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e3) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", size < 1e-12 ? 0.0 : value);
}

std::string plot_svg(const std::string& title, std::span<const PlotPanel> panels) {
  const double width = kPanelWidth * static_cast<double>(std::max<size_t>(panels.size(), 1));
  const size_t names = panels.empty() ? 0 : panels.front().series.size();
  const size_t legend_rows = (names + kLegendColumns - 1) / kLegendColumns;
  const double height = kPanelHeight + kLegendRow * (static_cast<double>(legend_rows) + 0.5);
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" )"
      R"(font-family="sans-serif" font-size="12">)"
      "\n"
      R"(<rect width="{0:.0f}" height="{1:.0f}" fill="#fff"/>)"
      "\n"
      R"(<text x="{2:.0f}" y="16" text-anchor="middle" font-size="13">{3}</text>)"
      "\n",
      width, height, width / 2, monitoring::escape_html(title));
  for (size_t at = 0; at < panels.size(); ++at) {
    PanelDrawing(panels[at], kPanelWidth * static_cast<double>(at)).draw(svg);
  }
  if (!panels.empty()) draw_legend(svg, panels.front().series, width);
  return svg + "</svg>\n";
}

}  // namespace millrace::bench
