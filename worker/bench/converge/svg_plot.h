#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::bench {

enum class AxisScale : uint8_t { kLinear = 1, kLogarithmic = 2 };

struct PlotAxis {
  std::string title;
  AxisScale scale = AxisScale::kLinear;
};

struct PlotPoint {
  double x = 0;
  double y = 0;
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
};

struct PlotPanel {
  PlotAxis x;
  PlotAxis y;
  std::vector<PlotSeries> series;  ///< the same names in the same order in every panel
};

/// Returns the numbers of an axis from `least` to `most`, ascending, all within: multiples of 1, 2 or 5 times a power
/// of ten. On a logarithmic axis they are powers of ten, with their doubles and fivefolds where there are few of them.
///
/// REQUIRES: least < most, both finite; above 0 on a logarithmic axis.
std::vector<double> axis_ticks(double least, double most, AxisScale scale);

/// Returns a number on an axis: "0.5", "20", "1.5k", "300M".
std::string tick_text(double value);

/// Draws panels beside each other with axes, numbers and one legend, as an SVG document of their own: no script, no
/// font, no reference.
///
/// Points that an axis cannot show (not finite, or not above 0 on a logarithmic one) are left out. A panel without any
/// point has a note.
std::string plot_svg(const std::string& title, std::span<const PlotPanel> panels);

}  // namespace millrace::bench
