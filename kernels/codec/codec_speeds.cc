#include "kernels/codec/choice.h"

namespace millrace {

// measure_speeds() on a 2-core virtual machine (EPYC with AVX-512), rounded.
const CodecSpeeds& fallback_speeds() {
  static const CodecSpeeds speeds = [] {
    CodecSpeeds table;
    table.index = {
        {IndexCodecId{1}, {{150, {0.5, 0.45, 0.45, 0.45}, 1.8}, {200, {0.4, 0.35, 0.35, 0.3}, 1.4}}},  // raw
        {IndexCodecId{2}, {{300, {6.5, 1.6, 1.2, 1.1}, 1.5}, {130, {60, 12, 1.9, 0.6}, 1.3}}},         // bitmap
        {IndexCodecId{3}, {{800, {1.3, 1.3, 1.3, 1.2}, 1.2}, {400, {1, 1, 1, 0.6}, 1.2}}},             // gap
        {IndexCodecId{5}, {{300, {4.5, 4.3, 4.3, 4.3}, 1}, {180, {5, 5, 5, 5}, 1}}},                   // elias_gamma
        {IndexCodecId{6}, {{350, {12, 12, 12, 12}, 1}, {250, {7, 7, 7, 7}, 1}}},                       // elias_delta
        {IndexCodecId{7}, {{350, {12, 12, 12, 11}, 1}, {280, {5.5, 5.3, 5.3, 5.3}, 1}}},               // rice
        {IndexCodecId{8}, {{350, {9, 8.5, 8.5, 3.3}, 1}, {280, {6.3, 6, 6, 4.5}, 1}}},                 // golomb
        {IndexCodecId{9}, {{600, {11, 10.5, 10.5, 10}, 1}, {600, {6, 6, 6, 6}, 1}}},                   // adaptive
        {IndexCodecId{10}, {{350, {9.8, 9.5, 9.5, 5.5}, 1}, {350, {11, 10.5, 10.5, 6.5}, 1}}},         // run_length
        {IndexCodecId{11}, {{40'000, {11, 11, 11, 11}, 1}, {18'000, {22, 22, 22, 22}, 1}}},            // huffman
        {IndexCodecId{12}, {{1'100, {9.5, 6.3, 6, 5.6}, 1}, {300, {3, 2.2, 2.4, 1.5}, 1}}},            // roaring
        {IndexCodecId{13}, {{550, {9.3, 6.6, 6.2, 6.2}, 1}, {230, {12, 8.5, 8, 8}, 1}}},               // streamvbyte
    };
    table.value = {{ValueCodecId::kRaw, 0, 0}, {ValueCodecId::kQsgd, 5, 0.8}};
    table.dense = {{350, {0.35, 0.35, 0.35, 0.6}, 3}, {300, {0.2, 0.2, 0.2, 0.2}, 2.2}};
    return table;
  }();
  return speeds;
}

}  // namespace millrace
