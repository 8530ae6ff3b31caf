#include <algorithm>
#include <cmath>

#include "kernels/codec/automatic/codec_choice.h"

namespace millrace {
namespace {

WaySpeed way(double fixed_ns, const std::array<double, kSpeedDensities.size()>& unit_ns, double far_ns,
             double clustered = 1) {
  return {{fixed_ns, fixed_ns, fixed_ns}, unit_ns, {far_ns * 2 / 3, far_ns, far_ns}, {clustered, clustered}};
}

}  // namespace

double CodecSpeeds::ValueWay::at(double units) const {
  const auto place = [](size_t at) { return static_cast<double>(kValueUnits[at]); };
  if (units >= place(ns.size() - 1)) return ns.back() * units / place(ns.size() - 1);
  size_t upper = 1;
  while (units > place(upper)) ++upper;
  const double share = std::max(units - place(upper - 1), 0.0) / (place(upper) - place(upper - 1));
  return std::lerp(ns[upper - 1], ns[upper], share);
}

// measure_speeds() on a 2-core virtual machine (EPYC with AVX-512), rounded.
const CodecSpeeds& fallback_speeds() {
  static const CodecSpeeds speeds = [] {
    CodecSpeeds table;
    table.index = {
        {IndexCodecId{1},
         {way(150, {0.5, 0.45, 0.45, 0.45, 0.45}, 0.7), way(170, {0.45, 0.35, 0.3, 0.3, 0.3}, 0.15)}},      // raw
        {IndexCodecId{2}, {way(250, {5.5, 1.4, 1.1, 1, 1}, 0.6), way(150, {62, 13, 1.9, 0.6, 0.6}, 0.4)}},  // bitmap
        {IndexCodecId{3}, {way(400, {1.4, 1.3, 1.3, 1.1, 1.1}, 0.4), way(200, {1, 0.95, 0.9, 0.6, 0.6}, 0.25)}},  // gap
        {IndexCodecId{5}, {way(280, {4.3, 4.3, 4.3, 4.3, 4.3}, 0), way(190, {5, 5, 5, 5, 5}, 0)}},        // elias_gamma
        {IndexCodecId{6}, {way(320, {12, 12, 12, 12, 12}, 0), way(240, {6.6, 6.6, 6.6, 6.6, 6.6}, 0)}},   // elias_delta
        {IndexCodecId{7}, {way(300, {12, 12, 12, 11, 11}, 0), way(240, {5.3, 5.3, 5.3, 5.3, 5.3}, 0)}},   // rice
        {IndexCodecId{8}, {way(310, {12, 9, 9, 3.3, 3.3}, 0), way(280, {8, 6, 6.2, 4.4, 4.4}, 0)}},       // golomb
        {IndexCodecId{9}, {way(400, {11, 10.5, 10.5, 10, 10}, 0), way(250, {6, 6, 6, 6, 6}, 0)}},         // adaptive
        {IndexCodecId{10}, {way(330, {9.5, 9.5, 9, 7, 7}, 0), way(280, {10.5, 10.5, 10, 7.5, 7.5}, 0)}},  // run_length
        {IndexCodecId{11}, {way(11'000, {18, 17, 17, 17, 17}, 0), way(7'000, {27, 27, 27, 27, 27}, 0)}},  // huffman
        {IndexCodecId{12},
         {way(580, {9.5, 6.5, 5.8, 5.6, 5.6}, 1.2), way(200, {3, 1.9, 1.5, 1.5, 1.5}, 2)}},         // roaring
        {IndexCodecId{13}, {way(370, {9, 7, 6.2, 6.2, 6.2}, 0), way(190, {11, 8.5, 8, 8, 8}, 0)}},  // streamvbyte
    };
    table.value = {{ValueCodecId::kRaw, {}, {}},
                   {ValueCodecId::kQsgd, CodecSpeeds::ValueWay::even(1.3), CodecSpeeds::ValueWay::even(0.3)}};
    table.dense = {way(330, {0.33, 0.33, 0.33, 0.55, 0.55}, 0.8), way(150, {0.2, 0.2, 0.2, 0.2, 0.2}, 0.25)};
    return table;
  }();
  return speeds;
}

}  // namespace millrace
