#include "reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace headrace {
namespace {

constexpr uint64_t kMaxSize = uint64_t{1} << 30;

class Descriptor {
 public:
  // O_NONBLOCK: opening a pipe that nobody writes to must not hang; regular files ignore it.
  explicit Descriptor(const char* path) : fd_(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// The bytes that are there: fewer than `size` where the file ends before.
Code read_up_to(const Descriptor& file, uint64_t begin, uint64_t size, Buffer* buffer, Bytes* bytes,
                int* sys_errno) {
  if (size > kMaxSize) return Code::kTooLarge;
  uint8_t* data = buffer->reserve(size);
  if (data == nullptr) return Code::kOutOfMemory;
  size_t done = 0;
  while (done < size) {
    const ssize_t n =
        ::pread(file.get(), data + done, size - done, static_cast<off_t>(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      *sys_errno = errno;
      return Code::kReadFailed;
    }
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  std::memset(data + done, 0, Buffer::kPadding);
  *bytes = {data, done, 0};
  return Code::kOk;
}

}  // namespace

Code read_file(const char* path, Buffer* buffer, Bytes* bytes, int* sys_errno) {
  const Descriptor file(path);
  struct stat info;
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
    *sys_errno = errno;
    return Code::kReadFailed;
  }
  if (!S_ISREG(info.st_mode)) {
    *sys_errno = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    return Code::kReadFailed;
  }
  const Code code =
      read_up_to(file, 0, static_cast<uint64_t>(info.st_size), buffer, bytes, sys_errno);
  bytes->mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return code;
}

Code read_extent(const char* path, uint64_t begin, uint64_t size, Buffer* buffer, Bytes* bytes,
                 int* sys_errno) {
  const Descriptor file(path);
  if (file.get() < 0) {
    *sys_errno = errno;
    return Code::kReadFailed;
  }
  const Code code = read_up_to(file, begin, size, buffer, bytes, sys_errno);
  if (code != Code::kOk || bytes->size == size) return code;
  *bytes = {};
  *sys_errno = 0;
  return Code::kReadFailed;
}

}  // namespace headrace
