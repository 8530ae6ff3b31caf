#include "kernels/cuda/queue/host_block.h"

namespace millrace::cuda {

void SharedWatch::note(Use& use, uint32_t thread) const {
  if (use.epoch == epoch_ && use.thread != thread) thread = kSeveral;
  use = {epoch_, thread};
}

void SharedWatch::report(const char* what, uint32_t thread, size_t word, uint32_t other) {
  if (!race_.empty()) return;
  race_ = "thread " + std::to_string(thread) + " " + what + " shared word " + std::to_string(word);
  if (other != kSeveral) race_ += " of thread " + std::to_string(other);
  race_ += " without a barrier between";
}

SharedWatch::Word* SharedWatch::word_at(const char* what, uint32_t thread, size_t word) {
  if (word < words_.size()) return &words_[word];
  if (race_.empty()) {
    race_ = "thread " + std::to_string(thread) + " " + what + " word " + std::to_string(word) +
            ", past the end of shared memory";
  }
  return nullptr;
}

void SharedWatch::read(uint32_t thread, size_t word) {
  Word* const at = word_at("reads", thread, word);
  if (at == nullptr) return;
  if (others(at->writes, thread)) report("reads the written", thread, word, at->writes.thread);
  if (others(at->adds, thread)) report("reads the summed", thread, word, at->adds.thread);
  if (!at->written) report("reads the uninitialized", thread, word, kSeveral);
  note(at->reads, thread);
}

void SharedWatch::write(uint32_t thread, size_t word) {
  Word* const at = word_at("writes", thread, word);
  if (at == nullptr) return;
  if (others(at->writes, thread)) report("overwrites", thread, word, at->writes.thread);
  if (others(at->adds, thread)) report("overwrites the summed", thread, word, at->adds.thread);
  if (others(at->reads, thread)) report("overwrites the read", thread, word, at->reads.thread);
  at->written = true;
  note(at->writes, thread);
}

void SharedWatch::add(uint32_t thread, size_t word) {
  Word* const at = word_at("adds to", thread, word);
  if (at == nullptr) return;
  if (others(at->writes, thread)) report("adds to the written", thread, word, at->writes.thread);
  if (others(at->reads, thread)) report("adds to the read", thread, word, at->reads.thread);
  if (!at->written) report("adds to the uninitialized", thread, word, kSeveral);
  note(at->adds, thread);
}

}  // namespace millrace::cuda
