#include "worker/peer/transport/mpi_file.h"

#include <mpi.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace millrace::peer {
namespace {

/// MPI counts in int; whole pages.
constexpr size_t kReadBytesMax = size_t{1} << 30;

std::string mpi_file_text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<size_t>(length)};
}

}  // namespace

class MpiFile::Handle {
 public:
  explicit Handle(MPI_File file) : file_(file) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { MPI_File_close(&file_); }
  MPI_File get() const { return file_; }

 private:
  MPI_File file_;
};

Result<std::unique_ptr<MpiFile>> MpiFile::open(const std::string& path) {
  int begun = 0, ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  if (begun == 0 || ended != 0) return fail(ErrorCode::kUnavailable, "MPI is not started (MPI_Init), or has ended");
  // MPI's own words for these are poor, and not the same everywhere.
  struct stat there = {};
  if (stat(path.c_str(), &there) != 0) return fail(ErrorCode::kIo, path + ": " + std::strerror(errno));
  if (!S_ISREG(there.st_mode)) {
    return fail(ErrorCode::kIo, path + ": it is no regular file: ranks read parts of it by their place in it");
  }
  MPI_File file = MPI_FILE_NULL;
  const int code = MPI_File_open(MPI_COMM_SELF, path.c_str(), MPI_MODE_RDONLY, MPI_INFO_NULL, &file);
  if (code != MPI_SUCCESS) return fail(ErrorCode::kIo, path + ": " + mpi_file_text_of(code));
  auto handle = std::make_unique<Handle>(file);
  MPI_Offset bytes = 0;
  if (const int got = MPI_File_get_size(file, &bytes); got != MPI_SUCCESS || bytes < 0) {
    return fail(ErrorCode::kIo, path + ": " + mpi_file_text_of(got));
  }
  return std::unique_ptr<MpiFile>(new MpiFile(path, std::move(handle), static_cast<uint64_t>(bytes)));
}

MpiFile::MpiFile(std::string path, std::unique_ptr<Handle> handle, uint64_t bytes)
    : path_(std::move(path)), handle_(std::move(handle)), bytes_(bytes) {}

MpiFile::~MpiFile() = default;

Status MpiFile::read_at(uint64_t at, std::span<uint8_t> into) {
  while (!into.empty()) {
    const size_t wanted = std::min(into.size(), kReadBytesMax);
    MPI_Status status;
    const int code = MPI_File_read_at(handle_->get(), static_cast<MPI_Offset>(at), into.data(),
                                      static_cast<int>(wanted), MPI_BYTE, &status);
    if (code != MPI_SUCCESS) return fail(ErrorCode::kIo, path_ + ": " + mpi_file_text_of(code));
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (count <= 0) return fail(ErrorCode::kIo, path_ + ": it ends before byte " + std::to_string(at + into.size()));
    into = into.subspan(static_cast<size_t>(count));
    at += static_cast<uint64_t>(count);
  }
  return {};
}

}  // namespace millrace::peer
