#pragma once

#include <string>

#include "worker/peer/group/peer_group.h"
#include "worker/training/data/dataset.h"
#include "worker/training/data/libsvm.h"
#include "worker/training/peers/line_range.h"

namespace millrace::training {

/// Holds a LIBSVM file of which every rank of a group reads a share.
struct SharedFile {
  std::string name;
  uint64_t bytes = 0;
  ReadAt read;
};

/// This rank's rows of the file: those of the lines that begin in its range of bytes (line_range.h). Classes, dimension
/// and rows_in_file are the whole file's. All ranks call it, and all succeed or fail.
///
/// options    without a part, and with no progress of its own.
/// Progress   moves the group along after every block, so that a rank with a long share is not taken for dead.
/// Errors     as LibsvmParser; lines are counted from the byte that the sentence names. unsupported: a compressed file,
///            which has to be read from its begin; a format that is not read. job_mismatch: the file has another length
///            on another rank. Those of SharedFile::read.
/// Source     [SparCML19, 7] (MPI-OPT: the dataset partitioned by MPI-IO).
Result<Dataset> read_share(peer::PeerGroup& group, const SharedFile& file, const LibsvmOptions& options);

}  // namespace millrace::training
