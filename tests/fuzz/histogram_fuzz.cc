// Magnitude histograms on hostile bytes: what decode() accepts is valid, and those bytes are its only code.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/reduce/magnitude_histogram.h"

namespace millrace {
namespace {

void check_cut(const MagnitudeHistogram& histogram, uint64_t k) {
  const HistogramThreshold cut = histogram_threshold(histogram, k);
  MILLRACE_CHECK(cut.bin >= 1 && cut.bin < MagnitudeHistogram::kBins, cut.bin);
  MILLRACE_CHECK(cut.in_bin == histogram.count(cut.bin) && cut.take <= cut.in_bin, cut.bin, cut.take, cut.in_bin);
  MILLRACE_CHECK(cut.above + cut.take == std::min(k, histogram.total()), k, cut.above, cut.take);
}

}  // namespace
}  // namespace millrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using millrace::MagnitudeHistogram;
  const millrace::ByteSpan bytes(data, size);
  const millrace::Result<MagnitudeHistogram> histogram = MagnitudeHistogram::decode(bytes);
  if (!histogram) return 0;
  MILLRACE_CHECK(histogram->total() <= MagnitudeHistogram::kCountMax && histogram->count(0) == 0, histogram->total());
  millrace::ByteBuffer again;
  histogram->encode(again);
  MILLRACE_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()), again.size(), size);
  for (const uint64_t k : {uint64_t{0}, uint64_t{1}, histogram->total() / 2, histogram->total(), ~uint64_t{0}}) {
    millrace::check_cut(*histogram, k);
  }
  MagnitudeHistogram twice = *histogram;
  twice.add(*histogram);
  MILLRACE_CHECK(twice.total() == 2 * histogram->total(), twice.total());
  return 0;
}
