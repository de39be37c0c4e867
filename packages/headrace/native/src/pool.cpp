#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace headrace {
namespace {

// Of this thread, since it began: it gave the processor up to wait for something.
int64_t voluntary_switches() {
  struct rusage usage;
  return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
}

}  // namespace

// Reads are inline until they block: handing a file over costs two thread switches, more than a
// read from the page cache. They count as blocking when, on a moving average, one takes longer than
// kSlowRead and than this share of the time that a sample takes to make.
constexpr double kSlowReadNanoseconds = 300'000;
constexpr double kSlowReadShare = 0.25;
constexpr double kBlockedShare = 0.5;  // of the reads: one that waited for long is no pattern
constexpr double kAverageWeight = 0.05;
constexpr int kSamplesBeforeJudging = 32;
constexpr int kReadAheadPerThread = 2;
constexpr int64_t kReadAheadBytes = int64_t{256} << 20;
constexpr std::chrono::seconds kPatienceAtEnd{5};

struct PoolState {
  using Item = Batch::Item;
  using State = Batch::State;

  // Who read a sample's file: a reader thread, or the thread that makes the sample, with or without
  // having to wait.
  enum class ReadBy { kReader, kSelf, kSelfBlocked };

  // A sample that a thread has claimed. The batch is kept alive by the caller of hr_batch_submit
  // (it waits before freeing) and by this.
  struct Claim {
    std::shared_ptr<Batch> batch;
    int64_t position = -1;
    explicit operator bool() const { return batch != nullptr; }
    Item& item() const { return batch->items_[static_cast<size_t>(position)]; }
  };

  mutable std::mutex mutex;
  std::condition_variable work;       // something to decode
  std::condition_variable read_work;  // something to read ahead
  std::condition_variable finished;   // a batch is done, or a thread has ended
  std::deque<std::shared_ptr<Batch>>
      queue;  // batches with samples that nobody has taken, oldest first
  bool stopping = false;
  int live_threads = 0;
  int decode_threads = 0;    // wanted; those beyond end once they are done with their sample
  int decoders = 0;          // that run
  int max_read_threads = 0;  // wanted once reads are seen to block
  int read_threads = 0;      // that run
  int64_t judged = 0;
  double read_average = 0;
  double make_average = 0;
  double blocked_average = 0;
  int read_ahead_items = 0;
  int64_t read_ahead_bytes = 0;
  std::vector<std::unique_ptr<Buffer>> spare;  // of read-ahead
  Tally total = {};
  std::unique_ptr<SampleMaker>
      spare_maker;  // of the waiting thread, in a pool without decode threads

  // --- all below are called with the mutex held ---

  // The next sample to decode: the first that is read, or else the first that nobody reads.
  Claim claim_decode() {
    for (const std::shared_ptr<Batch>& batch : queue) {
      const auto size = static_cast<int64_t>(batch->items_.size());
      for (int64_t i = batch->first_open_; i < size; ++i) {
        Item& item = batch->items_[static_cast<size_t>(i)];
        if (item.state == State::kUnread || item.state == State::kReady) return take(batch, i);
      }
    }
    return {};
  }

  Claim take(std::shared_ptr<Batch> batch, int64_t position) {
    Item& item = batch->items_[static_cast<size_t>(position)];
    if (item.state == State::kReady) {
      --read_ahead_items;
      read_ahead_bytes -= static_cast<int64_t>(item.bytes.size);
      if (read_threads > 0) read_work.notify_one();
    }
    item.state = State::kTaken;
    const auto size = static_cast<int64_t>(batch->items_.size());
    int64_t& open = batch->first_open_;
    while (open < size && batch->items_[static_cast<size_t>(open)].state == State::kTaken) ++open;
    if (open == size) queue.erase(std::find(queue.begin(), queue.end(), batch));
    return {std::move(batch), position};
  }

  Claim claim_read() {
    if (read_ahead_items >= kReadAheadPerThread * max_read_threads + decode_threads) return {};
    if (read_ahead_bytes >= kReadAheadBytes) return {};
    for (const std::shared_ptr<Batch>& batch : queue) {
      if (batch->request_.source->paths == nullptr) continue;
      const auto size = static_cast<int64_t>(batch->items_.size());
      int64_t& i = batch->first_unread_;
      while (i < size && batch->items_[static_cast<size_t>(i)].state != State::kUnread) ++i;
      if (i == size) continue;
      batch->items_[static_cast<size_t>(i)].state = State::kReading;
      ++read_ahead_items;
      return {batch, i};
    }
    return {};
  }

  std::unique_ptr<Buffer> spare_buffer() {
    if (spare.empty()) return std::make_unique<Buffer>();
    std::unique_ptr<Buffer> buffer = std::move(spare.back());
    spare.pop_back();
    return buffer;
  }

  void finish(const std::shared_ptr<Batch>& batch, int64_t count) {
    batch->unfinished_ -= count;
    if (batch->unfinished_ == 0) finished.notify_all();
  }

  void add(const Tally& tally) {
    total.samples += tally.samples;
    total.failed += tally.failed;
    total.bytes_read += tally.bytes_read;
    total.pixels_decoded += tally.pixels_decoded;
    total.stale_entries += tally.stale_entries;
    for (int i = 0; i < HR_STAGES; ++i) total.nanoseconds[i] += tally.nanoseconds[i];
    for (int i = 0; i < HR_DECODERS; ++i) total.decoded_by[i] += tally.decoded_by[i];
  }

  // Whether reads made by the decode threads are seen to block, so that readers should run ahead.
  bool judge(const Tally& tally, ReadBy read_by) {
    if (max_read_threads == 0 || read_threads > 0 || stopping || read_by == ReadBy::kReader)
      return false;
    const bool blocked = read_by == ReadBy::kSelfBlocked;
    const double read = blocked ? static_cast<double>(tally.nanoseconds[kRead]) : 0.0;
    double make = 0;
    for (int i = kParse; i < HR_STAGES; ++i) make += static_cast<double>(tally.nanoseconds[i]);
    const double weight = judged == 0 ? 1.0 : kAverageWeight;
    read_average += weight * (read - read_average);
    make_average += weight * (make - make_average);
    blocked_average += weight * ((blocked ? 1.0 : 0.0) - blocked_average);
    return ++judged >= kSamplesBeforeJudging && blocked_average > kBlockedShare &&
           read_average > kSlowReadNanoseconds && read_average > kSlowReadShare * make_average;
  }

  void cancel(Batch* batch) {
    const auto found =
        std::find_if(queue.begin(), queue.end(), [&](const auto& b) { return b.get() == batch; });
    if (found == queue.end()) return;
    const std::shared_ptr<Batch> keep = *found;
    queue.erase(found);
    int64_t dropped = 0;
    for (size_t i = 0; i < keep->items_.size(); ++i) {
      Item& item = keep->items_[i];
      if (item.state == State::kTaken || item.state == State::kReading) continue;
      if (item.state == State::kReady) {
        --read_ahead_items;
        read_ahead_bytes -= static_cast<int64_t>(item.bytes.size);
        spare.push_back(std::move(item.buffer));
      }
      item.state = State::kTaken;
      set_status(*keep, static_cast<int64_t>(i), Code::kCancelled, 0);
      ++dropped;
    }
    finish(keep, dropped);
  }

  static void set_status(const Batch& batch, int64_t position, Code code, int sys_errno) {
    hr_status status = {};
    status.code = static_cast<int32_t>(code);
    status.sys_errno = sys_errno;
    status.decoder = -1;
    batch.request_.statuses[position] = status;
  }

  // --- called without the mutex ---

  static void start(const std::shared_ptr<PoolState>& state,
                    void (*body)(const std::shared_ptr<PoolState>&));
  static void decode_loop(const std::shared_ptr<PoolState>& state);
  static void read_loop(const std::shared_ptr<PoolState>& state);
  static void start_readers(const std::shared_ptr<PoolState>& state);
  static void start_decoders(const std::shared_ptr<PoolState>& state);
  static Code read(const Batch& batch, int64_t position, Buffer* buffer, Bytes* bytes,
                   int* sys_errno);
  static ReadBy make(const Claim& claim, SampleMaker* maker, Buffer* buffer, Tally* tally);
};

namespace {

// Signals belong to Python's main thread.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t old_;
};

}  // namespace

// The caller counts the thread in live_threads first.
void PoolState::start(const std::shared_ptr<PoolState>& state,
                      void (*body)(const std::shared_ptr<PoolState>&)) {
  const BlockedSignals blocked;
  std::thread([state, body] {
    body(state);
    const std::lock_guard<std::mutex> lock(state->mutex);
    --state->live_threads;
    state->finished.notify_all();
  }).detach();
}

Code PoolState::read(const Batch& batch, int64_t position, Buffer* buffer, Bytes* bytes,
                     int* sys_errno) {
  const hr_source& source = *batch.request_.source;
  const int64_t index = batch.request_.indices[position];
  if (source.begins != nullptr) {
    // An index that was damaged may say anything.
    if (source.shards[index] >= source.path_count) return Code::kReadFailed;
    const char* path = source.paths + source.path_offsets[source.shards[index]];
    return read_extent(path, source.begins[index], source.sizes[index], buffer, bytes, sys_errno);
  }
  if (source.paths != nullptr)
    return read_file(source.paths + source.path_offsets[index], buffer, bytes, sys_errno);
  const bool decoded = source.height != 0;
  *bytes = {source.data[index], decoded ? 0 : static_cast<size_t>(source.sizes[index]), 0};
  return Code::kOk;
}

// Reads the claimed sample, unless a reader did, and makes it.
PoolState::ReadBy PoolState::make(const Claim& claim, SampleMaker* maker, Buffer* buffer,
                                  Tally* tally) {
  Item& item = claim.item();
  ReadBy read_by = ReadBy::kReader;
  if (item.buffer == nullptr) {
    const int64_t waits = voluntary_switches();
    const int64_t start = now_nanoseconds();
    item.read_code = read(*claim.batch, claim.position, buffer, &item.bytes, &item.sys_errno);
    tally->nanoseconds[kRead] += now_nanoseconds() - start;
    tally->bytes_read += static_cast<int64_t>(item.bytes.size);
    read_by = voluntary_switches() == waits ? ReadBy::kSelf : ReadBy::kSelfBlocked;
  }
  if (item.read_code == Code::kOk) {
    maker->make(claim.batch->request_, claim.position, item.bytes, tally);
  } else {
    ++tally->failed;
    set_status(*claim.batch, claim.position, item.read_code, item.sys_errno);
  }
  return read_by;
}

void PoolState::decode_loop(const std::shared_ptr<PoolState>& state) {
  SampleMaker maker;
  Buffer buffer;
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    Claim claim;
    state->work.wait(lock, [&] {
      return state->stopping || state->decoders > state->decode_threads ||
             (claim = state->claim_decode());
    });
    if (!claim) {
      --state->decoders;
      return;
    }
    lock.unlock();
    Tally tally = {};
    const ReadBy read_by = make(claim, &maker, &buffer, &tally);
    lock.lock();
    state->add(tally);
    if (read_by == ReadBy::kReader) state->spare.push_back(std::move(claim.item().buffer));
    if (state->judge(tally, read_by)) {
      lock.unlock();
      start_readers(state);
      lock.lock();
    }
    state->finish(claim.batch, 1);
  }
}

void PoolState::start_readers(const std::shared_ptr<PoolState>& state) {
  int missing = 0;
  {
    const std::lock_guard<std::mutex> lock(state->mutex);
    if (state->stopping) return;
    missing = std::max(0, state->max_read_threads - state->read_threads);
    state->read_threads += missing;
    state->live_threads += missing;
  }
  for (int i = 0; i < missing; ++i) {
    try {
      start(state, read_loop);
    } catch (const std::system_error&) {
      // Fewer readers than wished for: those that started do the work, or the decode threads go on
      // reading.
      const std::lock_guard<std::mutex> lock(state->mutex);
      --state->live_threads;
      --state->read_threads;
    }
  }
}

// Throws std::system_error where a thread can't be made; those that were made stay.
void PoolState::start_decoders(const std::shared_ptr<PoolState>& state) {
  while (true) {
    {
      const std::lock_guard<std::mutex> lock(state->mutex);
      if (state->stopping || state->decoders >= state->decode_threads) return;
      ++state->decoders;
      ++state->live_threads;
    }
    try {
      start(state, decode_loop);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(state->mutex);
      --state->live_threads;
      --state->decoders;
      throw;
    }
  }
}

void PoolState::read_loop(const std::shared_ptr<PoolState>& state) {
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    Claim claim;
    state->read_work.wait(lock, [&] {
      return state->stopping || state->read_threads > state->max_read_threads ||
             (claim = state->claim_read());
    });
    if (!claim) {
      --state->read_threads;
      return;
    }
    std::unique_ptr<Buffer> buffer = state->spare_buffer();
    lock.unlock();
    Item& item = claim.item();
    const int64_t begin = now_nanoseconds();
    item.read_code = read(*claim.batch, claim.position, buffer.get(), &item.bytes, &item.sys_errno);
    const int64_t spent = now_nanoseconds() - begin;
    lock.lock();
    item.buffer = std::move(buffer);
    item.state = State::kReady;
    state->total.nanoseconds[kRead] += spent;
    state->total.bytes_read += static_cast<int64_t>(item.bytes.size);
    state->read_ahead_bytes += static_cast<int64_t>(item.bytes.size);
    // A batch that was cancelled meanwhile is no longer in the queue: nobody will decode this
    // sample.
    if (std::find(state->queue.begin(), state->queue.end(), claim.batch) == state->queue.end()) {
      --state->read_ahead_items;
      state->read_ahead_bytes -= static_cast<int64_t>(item.bytes.size);
      item.state = State::kTaken;
      set_status(*claim.batch, claim.position, Code::kCancelled, 0);
      state->finish(claim.batch, 1);
    } else if (state->decode_threads == 0) {
      state->finished.notify_all();
    } else {
      state->work.notify_one();
    }
  }
}

Pool::Pool(int decode_threads, int read_threads)
    : state_(std::make_shared<PoolState>()), pid_(::getpid()) {
  state_->decode_threads = decode_threads;
  state_->max_read_threads = decode_threads > 0 ? read_threads : 0;
  try {
    PoolState::start_decoders(state_);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
    state_->work.notify_all();
    throw;
  }
}

Pool::~Pool() {
  if (in_other_process()) {
    // Its mutex may be held by a thread that doesn't exist here, so nothing of it can be touched:
    // forgotten, on purpose.
    new std::shared_ptr<PoolState>(std::move(state_));
    return;
  }
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->stopping = true;
  while (!state_->queue.empty())
    state_->cancel(std::shared_ptr<Batch>(state_->queue.front()).get());
  state_->work.notify_all();
  state_->read_work.notify_all();
  state_->finished.wait_for(lock, kPatienceAtEnd, [&] { return state_->live_threads == 0; });
}

bool Pool::in_other_process() const { return ::getpid() != pid_; }

void Pool::use(int decode_threads, int read_threads) {
  bool reading = false;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->decode_threads = decode_threads;
    state_->max_read_threads = read_threads;
    reading = state_->read_threads > 0;
    state_->work.notify_all();
    state_->read_work.notify_all();
  }
  PoolState::start_decoders(state_);
  if (reading) PoolState::start_readers(state_);
}

bool Pool::makes_in_caller() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->decode_threads == 0;
}

std::shared_ptr<Batch> Pool::submit(const hr_request& request) {
  auto batch = std::make_shared<Batch>(state_, request);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (request.count == 0) return batch;
  state_->queue.push_back(batch);
  state_->work.notify_all();
  if (state_->read_threads > 0) state_->read_work.notify_all();
  return batch;
}

void Pool::stats(hr_stats* out) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  *out = state_->total;
  out->decode_threads = state_->decode_threads;
  out->read_threads = state_->read_threads;
}

Batch::Batch(std::shared_ptr<PoolState> state, const hr_request& request)
    : state_(std::move(state)),
      request_(request),
      items_(static_cast<size_t>(request.count)),
      unfinished_(request.count),
      pid_(::getpid()) {}

Batch::~Batch() {
  if (in_other_process()) new std::shared_ptr<PoolState>(std::move(state_));
}

bool Batch::in_other_process() const { return ::getpid() != pid_; }

Code Batch::wait(int timeout_ms) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  const auto ready = [&] { return done(); };
  if (state_->decode_threads > 0) {
    const bool in_time =
        state_->finished.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready);
    return in_time ? Code::kOk : Code::kTimeout;
  }
  if (done()) return Code::kOk;
  if (timeout_ms == 0) return Code::kTimeout;
  std::unique_ptr<SampleMaker> maker = std::move(state_->spare_maker);
  if (maker == nullptr) maker = std::make_unique<SampleMaker>();
  Buffer buffer;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    PoolState::Claim claim = state_->claim_decode();
    if (!claim) {  // another thread that waits has taken the rest
      state_->finished.wait_until(lock, deadline, ready);
      continue;
    }
    lock.unlock();
    Tally tally = {};
    PoolState::make(claim, maker.get(), &buffer, &tally);
    lock.lock();
    state_->add(tally);
    state_->finish(claim.batch, 1);
  }
  state_->spare_maker = std::move(maker);
  return done() ? Code::kOk : Code::kTimeout;
}

void Batch::cancel() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->cancel(this);
}

}  // namespace headrace
