#include "kernels/base/hash.h"
#include "worker/core/residual/idle_tensor.h"

/// The state that later steps of a bucket depend on beside residual and velocity, for saved states.
namespace millrace::worker {
namespace {

constexpr uint64_t kStepsMax = uint64_t{1} << 62;

/// Returns a digest of the settings that give the numbers their meaning.
uint64_t digest_of(const protocol::JobSpec& spec, const SelectionSpec& select, uint64_t dimension) {
  protocol::JobSpec settings;
  settings.workers = spec.workers;
  settings.seed = spec.seed;
  settings.path = spec.path;
  settings.select = select;
  settings.reproducible = spec.reproducible;
  settings.grid = spec.grid;
  settings.tensors.resize(1);
  settings.tensors.front().dimension = dimension;
  return hash64(ByteSpan(protocol::encode_job_spec(settings)));
}

}  // namespace

Retained IdleTensor::retained() const {
  Retained out{digest_of(bucket->spec_, bucket->residual_.spec(), bucket->dimension_),
               bucket->resumes_at_.value_or(bucket->steps_)};
  append_list(out, bucket->residual_.retained());
  append_list(out, bucket->grid_ ? bucket->grid_->retained() : Retained{});
  return out;
}

Result<bool> IdleTensor::restore_retained(std::span<const uint64_t> retained) const {
  Bucket& to = *bucket;
  if (retained.empty() || retained.front() != digest_of(to.spec_, to.residual_.spec(), to.dimension_)) return false;
  RetainedReader reader(retained.subspan(1));
  const uint64_t steps = reader.next(0, kStepsMax);
  const std::span<const uint64_t> of_selection = reader.list();
  const std::span<const uint64_t> of_grid = reader.list();
  if (Status status = reader.end(); !status) return std::unexpected(status.error());
  const Retained before = to.residual_.retained();
  if (Status status = to.residual_.restore_retained(of_selection); !status) {
    return std::unexpected(status.error());
  }
  const Status done = to.grid_ ? to.grid_->restore_retained(of_grid, to.dimension_) : RetainedReader(of_grid).end();
  if (!done) {
    // It cannot fail: these numbers are its own.
    static_cast<void>(to.residual_.restore_retained(before));
    return std::unexpected(done.error());
  }
  to.resumes_at_ = steps;
  return true;
}

}  // namespace millrace::worker
