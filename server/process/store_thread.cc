#include "server/process/store_thread.h"

#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

namespace millrace::server {

StoreThread::StoreThread(std::string folder, uint32_t shard, std::unique_ptr<Disk> disk, std::function<void()> wake,
                         ShardStart start)
    : disk_(std::move(disk)),
      folder_(std::move(folder), shard, *disk_, std::move(start)),
      wake_(std::move(wake)),
      thread_([this] { run(); }) {}

StoreThread::~StoreThread() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StoreThread::submit(std::vector<StoreRequest>& requests) {
  if (requests.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    // First the room for the answers, and for that of the request under way. Where memory ends in one of the two calls,
    // no request is taken: the caller submits them again.
    done_.reserve(done_.size() + asked_.size() + requests.size() + 1);
    asked_.insert(asked_.end(), requests.begin(), requests.end());
  }
  requests.clear();
  changed_.notify_all();
}

void StoreThread::take_done(std::vector<Answer>& done) {
  const std::lock_guard lock(mutex_);
  done.insert(done.end(), std::make_move_iterator(done_.begin()), std::make_move_iterator(done_.end()));
  done_.clear();
}

StoreThread::Answer StoreThread::execute_request(const StoreRequest& request) {
  const bool loads = request.what == StoreRequest::What::kLoad;
  const auto failed = [&](const char* why) -> Answer {
    const std::unexpected<Error> error = fail(ErrorCode::kLimitExceeded, why);
    if (loads) return {request.job, Result<StoreFile>(error)};
    return {request.job, Status(error)};
  };
  try {
    if (loads) return {request.job, folder_.load(request.name)};
    const Status written = folder_.write(request);
    return {request.job, written, folder_.take_note()};
  } catch (const std::bad_alloc&) {
    return failed(kNotRun);
  } catch (const std::length_error&) {
    return failed(kNotRun);
  }
}

/// Claims the folder. A failure is left to the next save, which claims it again and reports.
void StoreThread::claim_folder() {
  try {
    (void)folder_.claim();
  } catch (const std::bad_alloc&) {
    return;  // the next save claims it
  }
}

void StoreThread::run() {
  claim_folder();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !asked_.empty(); });
    if (asked_.empty()) return;
    const StoreRequest request = std::move(asked_.front());
    asked_.pop_front();
    lock.unlock();
    Answer answer = execute_request(request);
    lock.lock();
    done_.push_back(std::move(answer));
    lock.unlock();
    wake_();
    lock.lock();
  }
}

std::unique_ptr<StoreThread> start_store_thread(const Options& options, uint64_t incarnation,
                                                std::function<void()> wake) {
  return std::make_unique<StoreThread>(options.store_dir, options.shard, system_disk(), std::move(wake),
                                       ShardStart{incarnation, options.table.location});
}

}  // namespace millrace::server
