#include "monitoring/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "kernels/base/check.h"
#include "kernels/base/plain_text.h"

namespace millrace::monitoring {
namespace {

enum class Kind : uint8_t { kCounter, kGauge, kHistogram };

bool is_word(std::string_view text) {
  const auto ok = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && text.front() >= 'a' && text.front() <= 'z' && std::all_of(text.begin(), text.end(), ok);
}

void check_names(Kind kind, std::string_view name, const Labels& labels) {
  MILLRACE_CHECK(is_word(name) && name.starts_with("millrace_"), name);
  MILLRACE_CHECK(name.ends_with("_total") == (kind == Kind::kCounter), name);
  for (const auto& [label, value] : labels) MILLRACE_CHECK(is_word(label) && label != "le", name, label);
}

/// No job's name is longer (kNameBytesMax, protocol/job/job_spec.h): two names that differ have two series.
constexpr size_t kLabelBytesMax = 255;
constexpr const char* kOther = "other";

}  // namespace

struct Metrics::Impl {
  template <typename Handle>
  using Series = std::map<std::map<std::string, std::string>, std::unique_ptr<Handle>>;

  struct Named {
    Kind kind;
    std::string help;
    std::vector<double> bounds;
    void* family = nullptr;
    Series<Counter> counters;
    Series<Gauge> gauges;
    Series<Histogram> histograms;
  };

  /// The entry of `name`; `build` makes its family the first time. Aborts where the name has another kind, help or
  /// buckets.
  template <typename Build>
  Named& named(Kind kind, std::string_view name, std::string_view help, std::span<const double> bounds, Build&& build) {
    const auto found = names.find(name);
    if (found == names.end()) {
      Named& made = names[std::string(name)];
      made.kind = kind;
      made.help = help;
      made.bounds.assign(bounds.begin(), bounds.end());
      made.family = &build();
      return made;
    }
    Named& known = found->second;
    MILLRACE_CHECK(known.kind == kind, name);
    MILLRACE_CHECK(known.help == help, name, known.help, help);
    MILLRACE_CHECK(std::equal(bounds.begin(), bounds.end(), known.bounds.begin(), known.bounds.end()), name);
    return known;
  }

  /// The handle for `labels` in `series`, made by `build` from the labels as the library has them.
  template <typename Handle, typename Build>
  static Handle& handle(Series<Handle>& series, const Labels& labels, Build&& build) {
    std::map<std::string, std::string> key;
    for (const auto& [label, value] : labels) key[label] = label_text(value);
    auto found = series.find(key);
    if (found == series.end() && series.size() >= kSeriesMax) {
      for (auto& [label, value] : key) value = kOther;
      found = series.find(key);
    }
    if (found == series.end()) found = series.emplace(key, build(key)).first;
    return *found->second;
  }

  template <typename Metric, typename Handle>
  static void forget(Named& named, Series<Handle>& series, const std::string& label, const std::string& value) {
    std::erase_if(series, [&](const auto& entry) {
      const auto found = entry.first.find(label);
      if (found == entry.first.end() || found->second != value) return false;
      static_cast<prometheus::Family<Metric>*>(named.family)->Remove(static_cast<Metric*>(entry.second->series_));
      return true;
    });
  }

  mutable std::mutex mutex;
  prometheus::Registry registry;
  std::map<std::string, Named, std::less<>> names;
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

Counter& Metrics::counter(std::string_view name, std::string_view help, const Labels& labels) {
  using Family = prometheus::Family<prometheus::Counter>;
  check_names(Kind::kCounter, name, labels);
  const std::lock_guard lock(impl_->mutex);
  Impl::Named& named = impl_->named(Kind::kCounter, name, help, {}, [&]() -> Family& {
    return prometheus::BuildCounter().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
  });
  return Impl::handle(named.counters, labels, [&](const std::map<std::string, std::string>& key) {
    return std::unique_ptr<Counter>(new Counter(&static_cast<Family*>(named.family)->Add(key)));
  });
}

Gauge& Metrics::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  using Family = prometheus::Family<prometheus::Gauge>;
  check_names(Kind::kGauge, name, labels);
  const std::lock_guard lock(impl_->mutex);
  Impl::Named& named = impl_->named(Kind::kGauge, name, help, {}, [&]() -> Family& {
    return prometheus::BuildGauge().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
  });
  return Impl::handle(named.gauges, labels, [&](const std::map<std::string, std::string>& key) {
    return std::unique_ptr<Gauge>(new Gauge(&static_cast<Family*>(named.family)->Add(key)));
  });
}

Histogram& Metrics::histogram(std::string_view name, std::string_view help, std::span<const double> upper_bounds,
                              const Labels& labels) {
  using Family = prometheus::Family<prometheus::Histogram>;
  check_names(Kind::kHistogram, name, labels);
  MILLRACE_CHECK(
      std::adjacent_find(upper_bounds.begin(), upper_bounds.end(), std::greater_equal<>()) == upper_bounds.end(), name);
  const std::lock_guard lock(impl_->mutex);
  Impl::Named& named = impl_->named(Kind::kHistogram, name, help, upper_bounds, [&]() -> Family& {
    return prometheus::BuildHistogram().Name(std::string(name)).Help(std::string(help)).Register(impl_->registry);
  });
  return Impl::handle(named.histograms, labels, [&](const std::map<std::string, std::string>& key) {
    prometheus::Histogram& made = static_cast<Family*>(named.family)->Add(key, named.bounds);
    return std::unique_ptr<Histogram>(new Histogram(&made));
  });
}

void Metrics::forget(std::string_view label, std::string_view value) {
  const std::string name(label);
  const std::string text = label_text(value);
  if (text == kOther) return;
  const std::lock_guard lock(impl_->mutex);
  for (auto& [metric, named] : impl_->names) {
    Impl::forget<prometheus::Counter>(named, named.counters, name, text);
    Impl::forget<prometheus::Gauge>(named, named.gauges, name, text);
    Impl::forget<prometheus::Histogram>(named, named.histograms, name, text);
  }
}

std::string Metrics::label_text(std::string_view value) { return plain_text_of(value, kLabelBytesMax); }

std::string Metrics::prometheus_text() const {
  // The registry locks for itself: a scrape of many series does not delay requests for a handle.
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

void Counter::increment(double amount) {
  if (amount >= 0 && std::isfinite(amount)) static_cast<prometheus::Counter*>(series_)->Increment(amount);
}
double Counter::value() const { return static_cast<const prometheus::Counter*>(series_)->Value(); }

void Gauge::set(double value) { static_cast<prometheus::Gauge*>(series_)->Set(value); }
void Gauge::add(double amount) { static_cast<prometheus::Gauge*>(series_)->Increment(amount); }
double Gauge::value() const { return static_cast<const prometheus::Gauge*>(series_)->Value(); }

void Histogram::observe(double value) {
  if (std::isfinite(value)) static_cast<prometheus::Histogram*>(series_)->Observe(value);
}

}  // namespace millrace::monitoring
