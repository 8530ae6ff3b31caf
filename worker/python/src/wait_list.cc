#include "worker/python/src/wait_list.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "worker/python/src/interpreter.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

using std::chrono::milliseconds;

size_t tensor_of(const py::handle& value) {
  try {
    return value.cast<size_t>();
  } catch (const py::cast_error&) {
    throw py::type_error("a tensor is a number of 0 or more");
  }
}

/// Returns the time until `limit`; 0 where it has passed.
milliseconds left_until(std::chrono::steady_clock::time_point limit) {
  return std::max(std::chrono::ceil<milliseconds>(limit - std::chrono::steady_clock::now()), milliseconds(0));
}

}  // namespace

WaitList::Wait& WaitList::append(size_t tensor, FloatOutput out) {
  const std::lock_guard lock(mutex_);
  return waits_.emplace_back(Wait{.tensor = tensor, .out = std::move(out)});
}

void WaitList::pushed(Wait& wait, uint64_t step) {
  const std::lock_guard lock(mutex_);
  wait.step = step;
  changed_.notify_all();
}

void WaitList::drop_unpushed() {
  std::deque<Wait> dropped;  // as in drop_part()
  const std::lock_guard lock(mutex_);
  while (!waits_.empty() && !waits_.back().step) {
    dropped.push_back(std::move(waits_.back()));
    waits_.pop_back();
  }
  for (size_t& end : ends_) end = std::min(end, waits_.size());
  changed_.notify_all();
}

void WaitList::end() {
  const std::lock_guard lock(mutex_);
  ends_.push_back(waits_.size());
  changed_.notify_all();
}

WaitList::Wait* WaitList::next(Time limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, limit, [this] { return is_written() || has_next(); });
  return has_next() ? &waits_[written_] : nullptr;
}

size_t WaitList::push(const py::list& gradients, double timeout_s) {
  const PythonSession::Counted counted(session_.calls_);
  struct Gradient {
    size_t tensor;
    FloatInput values;
    FloatOutput out;
    Wait* wait = nullptr;
  };
  std::vector<Gradient> all;
  all.reserve(py::len(gradients));
  for (const py::handle& gradient : gradients) {
    if (!py::isinstance<py::tuple>(gradient) || py::len(gradient) != 2)
      throw py::type_error("a gradient is a tuple (tensor, gradient)");
    const auto parts = py::reinterpret_borrow<py::tuple>(gradient);
    all.push_back({tensor_of(parts[0]), FloatInput(parts[1], "gradient"), FloatOutput(parts[1], "gradient")});
    session_.check_size(all.back().tensor, all.back().out.count(), "gradient");
  }
  const Time begin = std::chrono::steady_clock::now();
  size_t done = 0;
  try {
    for (Gradient& one : all) one.wait = &append(one.tensor, std::move(one.out));
    // A stretch of pushes without signal handlers is as long as a slice, though none of them waits.
    const auto push_stretch = [&](milliseconds slice) {
      return session_.call([&](Session& session) {
        const Time limit = std::chrono::steady_clock::now() + slice;
        do {
          Gradient& next = all[done];
          const auto step = session.try_push(next.tensor, next.values.values(), 1.0, left_until(limit));
          if (!step) return false;
          next.values.forget();
          pushed(*next.wait, *step);
          ++done;
        } while (done < all.size() && std::chrono::steady_clock::now() < limit);
        return true;
      });
    };
    for (bool in_time = true; in_time && done < all.size();) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      in_time = wait_in_slices(timeout_s - elapsed.count(), push_stretch);
    }
  } catch (...) {
    drop_unpushed();
    throw;
  }
  drop_unpushed();
  return done;
}

void WaitList::add(size_t tensor, uint64_t step, py::handle out) {
  FloatOutput output(out, "out");
  session_.check_size(tensor, output.count(), "out");
  pushed(append(tensor, std::move(output)), step);
}

bool WaitList::write(double timeout_s) {
  const PythonSession::Counted counted(session_.calls_);
  const bool is_whole = wait_in_slices(timeout_s, [&](milliseconds slice) {
    return session_.call([&](Session& session) {
      const Time limit = std::chrono::steady_clock::now() + slice;
      while (Wait* wait = next(limit)) {
        FilledUpdate filled;
        if (!await_into(session, wait->tensor, *wait->step, left_until(limit), 1.0, wait->out, filled)) return false;
        const std::lock_guard lock(mutex_);
        ++written_;
      }
      const std::lock_guard lock(mutex_);
      return is_written();
    });
  });
  if (is_whole) drop_part();
  return is_whole;
}

void WaitList::drop_part() {
  std::deque<Wait> part;  // its arrays go without the mutex: code of theirs may hand over the interpreter's lock
  const std::lock_guard lock(mutex_);
  for (; written_ > 0; --written_) {
    part.push_back(std::move(waits_.front()));
    waits_.pop_front();
  }
  const size_t end = ends_.front();
  ends_.pop_front();
  for (size_t& later : ends_) later -= end;
}

void bind_wait_list(py::module_& module) {
  using py::arg;
  py::class_<WaitList>(module, "WaitList", "Updates that are awaited; millrace.WaitList has the documentation.")
      .def(py::init<PythonSession&>(), arg("session"), py::keep_alive<1, 2>())
      .def("push", &WaitList::push, arg("gradients"), arg("timeout"))
      .def("add", &WaitList::add, arg("tensor"), arg("step"), arg("out"))
      .def("end", &WaitList::end)
      .def("write", &WaitList::write, arg("timeout"));
}

}  // namespace millrace::python
