/* Makes system calls fail: preloaded (LD_PRELOAD) into the program under test.
 *
 * The file named by HEADRACE_FAULTS holds lines "KIND NUMBER TEXT"; it is read again at every call,
 * and may change at any time. A line applies to files whose path holds TEXT:
 *
 *   open E    opening fails with errno E          read E    reading fails with errno E
 *   once E    the next read fails, then none      short N   a read gives at most N bytes
 *   cut N     the file seems to end at byte N     hang 0    reading waits until the line is gone
 *   wait 0    the same, but for pread: what native code calls
 *   full N    after N bytes were written to such files there is no space; another N starts the count again
 *   sync E    fsync fails with errno E
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long written, limit;

/* Whether a line of this kind applies to `path`; its number goes to *number. */
static int applies(const char* kind, const char* path, long* number) {
  const char* rules = getenv("HEADRACE_FAULTS");
  if (rules == NULL) return 0;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, rules, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[4096];
  const long size = syscall(SYS_read, fd, text, sizeof text - 1);
  syscall(SYS_close, fd);
  text[size > 0 ? size : 0] = '\0';
  char* rest = NULL;
  for (char* line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    char name[16], part[1024];
    if (sscanf(line, "%15s %ld %1023[^\n]", name, number, part) == 3 && strcmp(name, kind) == 0 &&
        strstr(path, part) != NULL)
      return 1;
  }
  return 0;
}

static int named(int fd, char* path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, 4095);
  path[size > 0 ? size : 0] = '\0';
  return size > 0;
}

/* Before a read of *size bytes from `at` on: 0 if it may go on, with *size perhaps lowered. */
static int before_read(int fd, size_t* size, off_t at, int by_offset) {
  char path[4096];
  long number = 0;
  if (!named(fd, path)) return 0;
  while (!by_offset && applies("wait", path, &number)) usleep(10000);
  while (applies("hang", path, &number)) usleep(10000);
  if (applies("read", path, &number)) {
    errno = (int)number;
    return -1;
  }
  if (applies("once", path, &number)) {
    truncate(getenv("HEADRACE_FAULTS"), 0);
    errno = (int)number;
    return -1;
  }
  if (applies("short", path, &number) && *size > (size_t)number) *size = (size_t)number;
  if (applies("cut", path, &number)) {
    const off_t left = at < number ? number - at : 0;
    if (*size > (size_t)left) *size = (size_t)left;
  }
  return 0;
}

/* Bytes of `size` that may be written; -1: none, as the disk is full. */
static ssize_t before_write(int fd, size_t size) {
  char path[4096];
  long number = 0;
  if (size == 0 || !named(fd, path) || !applies("full", path, &number)) return (ssize_t)size;
  if (atomic_exchange(&limit, number) != number) atomic_store(&written, 0);
  const long left = number - atomic_load(&written);
  if (left <= 0) {
    errno = ENOSPC;
    return -1;
  }
  if (size > (size_t)left) size = (size_t)left;
  atomic_fetch_add(&written, (long)size);
  return (ssize_t)size;
}

#define NEXT(name, type) \
  static type next;      \
  if (next == NULL) next = (type)dlsym(RTLD_NEXT, name)

typedef int (*open_function)(const char*, int, ...);
typedef int (*openat_function)(int, const char*, int, ...);
typedef ssize_t (*read_function)(int, void*, size_t);
typedef ssize_t (*pread_function)(int, void*, size_t, off_t);
typedef ssize_t (*write_function)(int, const void*, size_t);
typedef ssize_t (*writev_function)(int, const struct iovec*, int);
typedef ssize_t (*pwrite_function)(int, const void*, size_t, off_t);
typedef ssize_t (*pwritev_function)(int, const struct iovec*, int, off_t);
typedef int (*fsync_function)(int);

static int mode_of(int flags, va_list more) {
  return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
}

#define OPEN(name)                             \
  int name(const char* path, int flags, ...) { \
    NEXT(#name, open_function);                \
    long number = 0;                           \
    if (applies("open", path, &number)) {      \
      errno = (int)number;                     \
      return -1;                               \
    }                                          \
    va_list more;                              \
    va_start(more, flags);                     \
    const int mode = mode_of(flags, more);     \
    va_end(more);                              \
    return next(path, flags, mode);            \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                       \
  int name(int folder, const char* path, int flags, ...) { \
    NEXT(#name, openat_function);                          \
    long number = 0;                                       \
    if (applies("open", path, &number)) {                  \
      errno = (int)number;                                 \
      return -1;                                           \
    }                                                      \
    va_list more;                                          \
    va_start(more, flags);                                 \
    const int mode = mode_of(flags, more);                 \
    va_end(more);                                          \
    return next(folder, path, flags, mode);                \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int fd, void* data, size_t size) {
  NEXT("read", read_function);
  return before_read(fd, &size, lseek(fd, 0, SEEK_CUR), 0) == 0 ? next(fd, data, size) : -1;
}

#define PREAD(name)                                                            \
  ssize_t name(int fd, void* data, size_t size, off_t at) {                    \
    NEXT(#name, pread_function);                                               \
    return before_read(fd, &size, at, 1) == 0 ? next(fd, data, size, at) : -1; \
  }
PREAD(pread)
PREAD(pread64)

ssize_t write(int fd, const void* data, size_t size) {
  NEXT("write", write_function);
  const ssize_t allowed = before_write(fd, size);
  return allowed < 0 ? -1 : next(fd, data, (size_t)allowed);
}

ssize_t writev(int fd, const struct iovec* pieces, int count) {
  NEXT("writev", writev_function);
  size_t size = 0;
  for (int i = 0; i < count; ++i) size += pieces[i].iov_len;
  const ssize_t allowed = before_write(fd, size);
  if (allowed < 0) return -1;
  if ((size_t)allowed == size) return next(fd, pieces, count);
  struct iovec first = pieces[0];
  if (first.iov_len > (size_t)allowed) first.iov_len = (size_t)allowed;
  return next(fd, &first, 1);
}

#define PWRITE(name)                                               \
  ssize_t name(int fd, const void* data, size_t size, off_t at) {  \
    NEXT(#name, pwrite_function);                                  \
    const ssize_t allowed = before_write(fd, size);                \
    return allowed < 0 ? -1 : next(fd, data, (size_t)allowed, at); \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PWRITEV(name)                                                       \
  ssize_t name(int fd, const struct iovec* pieces, int count, off_t at) {   \
    NEXT(#name, pwritev_function);                                          \
    size_t size = 0;                                                        \
    for (int i = 0; i < count; ++i) size += pieces[i].iov_len;              \
    const ssize_t allowed = before_write(fd, size);                         \
    if (allowed < 0) return -1;                                             \
    return (size_t)allowed == size ? next(fd, pieces, count, at)            \
                                   : pwrite(fd, pieces[0].iov_base, 1, at); \
  }
PWRITEV(pwritev)
PWRITEV(pwritev64)

int fsync(int fd) {
  NEXT("fsync", fsync_function);
  char path[4096];
  long number = 0;
  if (named(fd, path) && applies("sync", path, &number)) {
    errno = (int)number;
    return -1;
  }
  return next(fd);
}
