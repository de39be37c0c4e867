// Threads that make batches: decode threads, and reader threads that run ahead of them once reads
// are seen to block.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "headrace.h"
#include "reader.h"
#include "sample.h"

namespace headrace {

class Batch;

// What pool, threads and batches share. It lives until the last of them is gone, so that a thread
// that is stuck in a read can be left behind.
struct PoolState;

class Pool {
 public:
  // Throws std::system_error where threads can't be made.
  Pool(int decode_threads, int read_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  bool in_other_process() const;
  std::shared_ptr<Batch> submit(const hr_request& request);
  void stats(hr_stats* out) const;
  // Changes the numbers of threads while they work. Not for pools that were made without decode
  // threads. Throws std::system_error where threads can't be made.
  void use(int decode_threads, int read_threads);
  bool makes_in_caller() const;

 private:
  std::shared_ptr<PoolState> state_;
  int pid_;
};

// Samples of one request on their way. Made by Pool::submit(); waited for and cancelled by any
// thread.
class Batch {
 public:
  Batch(std::shared_ptr<PoolState> state, const hr_request& request);
  ~Batch();

  bool in_other_process() const;
  // kOk, or kTimeout after `timeout_ms`. In a pool without decode threads this does the work.
  Code wait(int timeout_ms);
  void cancel();

 private:
  friend struct PoolState;

  enum class State : uint8_t { kUnread, kReading, kReady, kTaken };

  struct Item {
    State state = State::kUnread;
    Code read_code = Code::kOk;
    int sys_errno = 0;
    Bytes bytes;
    std::unique_ptr<Buffer> buffer;  // while kReady
  };

  bool done() const { return unfinished_ == 0; }

  std::shared_ptr<PoolState> state_;
  hr_request request_;
  std::vector<Item> items_;
  int64_t first_open_ = 0;  // every item before it is taken
  int64_t first_unread_ = 0;
  int64_t unfinished_;
  int pid_;
};

}  // namespace headrace
