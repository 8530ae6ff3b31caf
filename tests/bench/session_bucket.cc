// Sums buckets through a session from C++ threads, as millrace.hook does it from Python's. One thread pushes the
// tensors of a bucket, another one awaits each update and writes it over the gradient.
//
//   millrace_session_bucket SERVER JOB TENSORS ENTRIES DENSITY     1: all entries
//
// Each line on the standard input is a bucket. The answer is a line with two times in seconds: that of the pushes, and
// that until the last update is written. hook_overhead.py runs it in turn with the hook.
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"
#include "millrace/millrace.h"
#include "worker/python/src/fill_update.h"

namespace {

using millrace::monotonic_now_ns;

struct Shape {
  size_t tensors = 0;
  size_t entries = 0;  ///< of each
  double density = 1;
};

std::unique_ptr<millrace::Session> connect(const std::string& server, const std::string& name, const Shape& shape) {
  millrace::JobConfig job;
  job.name = name;
  job.select = shape.density < 1 ? millrace::Selection::top_k(shape.density) : millrace::Selection::all();
  job.updates.combine = millrace::Combine::kMean;
  millrace::WorkerConfig me;
  me.shards = {server};
  std::vector<millrace::TensorOptions> tensors(shape.tensors);
  for (size_t at = 0; at < tensors.size(); ++at) {
    tensors[at].name = "layer" + std::to_string(at);
    tensors[at].dimension = shape.entries;
  }
  return millrace::Session::connect(job, me, tensors);
}

/// Awaits updates in the order of the pushes, and writes each over its gradient.
class Waiter {
 public:
  explicit Waiter(millrace::Session& session) : session_(session), thread_([this] { run(); }) {}
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter() {
    add({.ends = true});
    thread_.join();
  }

  struct Item {
    size_t tensor = 0;
    uint64_t step = 0;
    std::span<float> out = {};
    bool ends = false;
  };
  void add(const Item& item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(item);
    added_ += item.ends ? 0 : 1;
    changed_.notify_all();
  }
  /// Waits until all updates are written.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return written_ == added_; });
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !items_.empty(); });
      const Item item = items_.front();
      items_.pop_front();
      lock.unlock();
      if (item.ends) return;
      const millrace::TensorUpdate update = session_.await(item.tensor, item.step);
      millrace::python::fill_update(update.pieces, 1, item.out);
      lock.lock();
      ++written_;
      changed_.notify_all();
    }
  }

  millrace::Session& session_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  uint64_t added_ = 0;
  uint64_t written_ = 0;
  std::thread thread_;  ///< last: it uses the members above
};

double seconds_since(millrace::TimeNs begin) { return static_cast<double>(monotonic_now_ns() - begin) * 1e-9; }

void run(millrace::Session& session, const Shape& shape) {
  std::vector<float> gradient(shape.tensors * shape.entries);
  std::mt19937 draws(1);
  std::normal_distribution<float> normal;
  for (float& value : gradient) value = normal(draws);
  std::vector<float> bucket(gradient.size());
  Waiter waiter(session);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    bucket = gradient;
    const auto begin = monotonic_now_ns();
    for (size_t tensor = 0; tensor < shape.tensors; ++tensor) {
      const std::span<float> part = std::span(bucket).subspan(tensor * shape.entries, shape.entries);
      waiter.add({.tensor = tensor, .step = session.push(tensor, part), .out = part});
    }
    const double pushed = seconds_since(begin);
    waiter.wait();
    std::cout << pushed << ' ' << seconds_since(begin) << std::endl;
  }
}

template <typename T>
T number_of(const std::string& text) {
  T value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> arguments(words, words + count);
  if (arguments.size() != 6) {
    std::cerr << "want SERVER JOB TENSORS ENTRIES DENSITY\n";
    return 2;
  }
  const Shape shape{number_of<size_t>(arguments[3]), number_of<size_t>(arguments[4]), number_of<double>(arguments[5])};
  try {
    const auto session = connect(arguments[1], arguments[2], shape);
    run(*session, shape);
    session->finish();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
