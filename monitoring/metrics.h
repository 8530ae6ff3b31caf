#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::monitoring {

/// Counts: a number that only grows. Handles are valid as long as their Metrics, or until forget() removes them, and
/// are thread-safe.
class Counter {
 public:
  /// REQUIRES: amount >= 0 and finite (anything else is not counted).
  void increment(double amount = 1);
  double value() const;

 private:
  friend class Metrics;
  explicit Counter(void* series) : series_(series) {}
  void* series_;  ///< of the metrics library, which stays out of this header
};

/// Holds a number that goes up and down.
class Gauge {
 public:
  void set(double value);
  void add(double amount);
  double value() const;

 private:
  friend class Metrics;
  explicit Gauge(void* series) : series_(series) {}
  void* series_;
};

/// Counts of observations by upper bound of their value, and their sum.
class Histogram {
 public:
  /// REQUIRES: value is finite (anything else is not counted).
  void observe(double value);

 private:
  friend class Metrics;
  explicit Histogram(void* series) : series_(series) {}
  void* series_;
};

using Labels = std::vector<std::pair<std::string, std::string>>;  ///< (name, value)

/// Holds a process's metrics. Not global: main() makes one and passes it on.
///
/// Names    "millrace_" and lower case, in base units: _seconds, _bytes; counters end in _total, nothing else does. A
///          name has one kind, one help text and one set of buckets. Names and label names are the program's own: a bad
///          one is a bug and aborts. Label values may be anything. Invalid UTF-8 and control characters become '?', a
///          value is truncated after 255 bytes, quotes are escaped. Job names are plain text of that length: each has
///          its own series.
/// Limits   kSeriesMax label sets a name. A request for more gets a set whose values are all "other". So hostile label
///          values cost no memory here or at the scraper.
/// Threads  all members; asking again for the same (name, labels) returns the same handle, by a map under a lock.
class Metrics {
 public:
  static constexpr size_t kSeriesMax = 1000;

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  Counter& counter(std::string_view name, std::string_view help, const Labels& labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, const Labels& labels = {});
  /// upper_bounds  strictly increasing, without the last, infinite one.
  Histogram& histogram(std::string_view name, std::string_view help, std::span<const double> upper_bounds,
                       const Labels& labels = {});

  /// Forgets every series, of any name, whose `label` has this value, so that another label set can be added. Their
  /// handles are invalid from then on. "other" stays: it counts for all label sets over the limit.
  void forget(std::string_view label, std::string_view value);

  /// Returns a label value as exported, the same for values that share their series.
  static std::string label_text(std::string_view value);

  /// Returns all metrics in Prometheus' text exposition format 0.0.4.
  std::string prometheus_text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::monitoring
