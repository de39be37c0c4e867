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

// The bytes that are there: fewer than `size` where the file ends before; -1 with errno set.
ssize_t read_up_to(int fd, uint64_t begin, uint8_t* data, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd, data + done, size - done, static_cast<off_t>(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(done);
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
  if (static_cast<uint64_t>(info.st_size) > kMaxSize) return Code::kTooLarge;
  const size_t size = static_cast<size_t>(info.st_size);
  uint8_t* data = buffer->reserve(size);
  if (data == nullptr) return Code::kOutOfMemory;
  const ssize_t read = read_up_to(file.get(), 0, data, size);
  if (read < 0) {
    *sys_errno = errno;
    return Code::kReadFailed;
  }
  std::memset(data + read, 0, Buffer::kPadding);
  const int64_t mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  *bytes = {data, static_cast<size_t>(read), mtime_ns};
  return Code::kOk;
}

Code read_extent(const char* path, uint64_t begin, uint64_t size, Buffer* buffer, Bytes* bytes,
                 int* sys_errno) {
  const Descriptor file(path);
  if (file.get() < 0) {
    *sys_errno = errno;
    return Code::kReadFailed;
  }
  if (size > kMaxSize) return Code::kTooLarge;
  uint8_t* data = buffer->reserve(static_cast<size_t>(size));
  if (data == nullptr) return Code::kOutOfMemory;
  const ssize_t read = read_up_to(file.get(), begin, data, static_cast<size_t>(size));
  if (read != static_cast<ssize_t>(size)) {
    *sys_errno = read < 0 ? errno : 0;
    return Code::kReadFailed;
  }
  std::memset(data + read, 0, Buffer::kPadding);
  *bytes = {data, static_cast<size_t>(size), 0};
  return Code::kOk;
}

}  // namespace headrace
