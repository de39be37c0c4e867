// The pool under everything that a program can do to it at once, made for ThreadSanitizer, valgrind
// and AddressSanitizer. The laws: a sample's bytes and status depend on its seed and its file
// alone, whoever makes it; only what was cancelled is HR_CANCELLED; nothing hangs.
//
//     test_pool [SECONDS]
//
// Reads are slowed down, or held up for as long as a test wants: the linker is told (--wrap=pread)
// to send the library's calls of pread() here. That is what makes the pool start its readers.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "pool_world.h"

namespace {

std::atomic<int> read_microseconds{0};
std::atomic<bool> reads_held_up{false};
std::atomic<bool> reads_waiting{false};  // one is held up

void sleep_microseconds(int count) {
  std::this_thread::sleep_for(std::chrono::microseconds(count));
}

}  // namespace

extern "C" ssize_t __real_pread(int fd, void* data, size_t size, off_t at);
extern "C" ssize_t __wrap_pread(int fd, void* data, size_t size, off_t at) {
  if (const int wait = read_microseconds.load()) sleep_microseconds(wait);
  while (reads_held_up.load()) {
    reads_waiting = true;
    sleep_microseconds(1000);
  }
  return __real_pread(fd, data, size, at);
}

namespace {

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

 private:
  std::mt19937 random_;
};

std::vector<int64_t> some_files(Random* random) {
  std::vector<int64_t> indices(static_cast<size_t>(random->below(20)));
  for (int64_t& index : indices) index = random->below(kFiles);
  return indices;
}

class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                 std::chrono::duration<double>(seconds))) {}
  bool passed() const { return std::chrono::steady_clock::now() >= end_; }

 private:
  std::chrono::steady_clock::time_point end_;
};

hr_pool* make_pool(int decode_threads, int read_threads) {
  hr_pool* pool = nullptr;
  CHECK(hr_pool_create(decode_threads, read_threads, &pool) == HR_OK);
  return pool;
}

hr_stats stats_of(hr_pool* pool) {
  hr_stats stats{};
  CHECK(hr_pool_stats(pool, &stats) == HR_OK);
  return stats;
}

// Up to four batches in flight, waited for in any order, a quarter of them cancelled at some
// moment. Adds the samples that were made to `made`.
void submit_for_a_while(hr_pool* pool, const World& world, const Expected& expected, unsigned seed,
                        const Deadline& deadline, std::atomic<int64_t>* made) {
  Random random(seed);
  std::vector<std::unique_ptr<Job>> flying;
  std::vector<bool> from_memory;
  do {
    while (flying.size() < 4) {
      const bool in_memory = random.below(4) == 0;
      const hr_source& source = in_memory ? world.files.in_memory : world.files.on_disk;
      flying.push_back(std::make_unique<Job>(world, source, some_files(&random),
                                             static_cast<uint64_t>(random.below(kSeeds))));
      from_memory.push_back(in_memory);
      flying.back()->submit(pool);
    }
    const auto picked = static_cast<size_t>(random.below(4));
    Job& job = *flying[picked];
    if (random.below(4) == 0) job.cancel();
    if (random.below(2) == 0 && !job.wait(random.below(4))) continue;
    job.finish();
    *made += expected.check(job, from_memory[picked]);
    flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(picked));
    from_memory.erase(from_memory.begin() + static_cast<std::ptrdiff_t>(picked));
  } while (!deadline.passed());
  for (size_t i = 0; i < flying.size(); ++i) {
    flying[i]->finish();
    *made += expected.check(*flying[i], from_memory[i]);
  }
}

// Looks at the statistics, and changes the numbers of threads all the while.
void watch_stats(hr_pool* pool, const std::atomic<bool>& stop) {
  Random random(7);
  hr_stats last = stats_of(pool);
  while (!stop) {
    if (last.decode_threads > 0 && random.below(8) == 0) {
      last.decode_threads = 1 + random.below(4);
      CHECK(hr_pool_use(pool, last.decode_threads, random.below(4)) == HR_OK);
    }
    const hr_stats now = stats_of(pool);
    CHECK(now.samples >= last.samples && now.failed >= last.failed);
    CHECK(now.bytes_read >= last.bytes_read && now.pixels_decoded >= last.pixels_decoded);
    CHECK(now.decode_threads == last.decode_threads);
    last = now;
    sleep_microseconds(200);
  }
}

// Several threads submit to one pool; another looks at its statistics, which must add up.
void many_submitters(const World& world, const Expected& expected, int decode_threads,
                     int read_threads, double seconds) {
  hr_pool* pool = make_pool(decode_threads, read_threads);
  const Deadline deadline(seconds);
  std::atomic<int64_t> made{0};
  std::atomic<bool> stop{false};
  std::thread watcher([&] { watch_stats(pool, stop); });
  std::vector<std::thread> submitters;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    submitters.emplace_back(
        [&, seed] { submit_for_a_while(pool, world, expected, seed, deadline, &made); });
  }
  for (std::thread& each : submitters) each.join();
  stop = true;
  watcher.join();
  const hr_stats stats = stats_of(pool);
  CHECK(stats.samples + stats.failed == made);
  int64_t decoded = 0;
  for (const int64_t count : stats.decoded_by) decoded += count;
  CHECK(decoded == stats.samples);
  CHECK(stats.samples > 0);
  hr_pool_destroy(pool);
}

// One thread waits, another cancels, a third waits too.
void cancelled_by_others(const World& world, const Expected& expected, double seconds) {
  Random random(7);
  for (const int decode_threads : {0, 2}) {
    hr_pool* pool = make_pool(decode_threads, 0);
    const Deadline deadline(seconds / 2);
    do {
      Job job(world, world.files.on_disk, every_file(), 1);
      job.submit(pool);
      const int moment = random.below(3000);
      std::thread canceller([&job, moment] {
        sleep_microseconds(moment);
        job.cancel();
      });
      std::thread waiter([&job] { job.finish(); });
      job.finish();
      canceller.join();
      waiter.join();
      expected.check(job);
    } while (!deadline.passed());
    hr_pool_destroy(pool);
  }
}

// A pool that goes while its batches are on their way: each sample is made or cancelled, and the
// batches can still be asked, and freed, afterwards.
void destroyed_at_work(const World& world, const Expected& expected, double seconds) {
  Random random(11);
  const Deadline deadline(seconds);
  do {
    read_microseconds = random.below(2) * 500;
    hr_pool* pool = make_pool(random.below(4), random.below(3));
    std::vector<std::unique_ptr<Job>> jobs;
    for (int i = random.below(4); i >= 0; --i) {
      jobs.push_back(std::make_unique<Job>(world, world.files.on_disk, every_file(), 2));
      jobs.back()->submit(pool);
    }
    if (random.below(2) == 0) jobs.front()->wait(random.below(3));
    if (random.below(2) == 0) sleep_microseconds(random.below(2000));
    hr_pool_destroy(pool);
    for (const auto& job : jobs) {
      CHECK(job->wait(0));
      job->cancel();  // nothing is left to cancel; says so to check() below
      expected.check(*job);
    }
  } while (!deadline.passed());
  read_microseconds = 0;
}

// Reads that take long enough make the pool start its readers; from then on everything goes through
// them, cancelled batches too.
void with_readers(const World& world, const Expected& expected, double seconds) {
  hr_pool* pool = make_pool(2, 3);
  CHECK(stats_of(pool).read_threads == 0);
  read_microseconds = 30000;  // valgrind makes samples slow, too
  while (stats_of(pool).read_threads == 0) {
    Job job(world, world.files.on_disk, every_file(), 0);
    job.submit(pool);
    job.finish();
    expected.check(job);
  }
  CHECK(stats_of(pool).read_threads == 3);
  const Deadline deadline(seconds);
  std::atomic<int64_t> made{0};
  std::vector<std::thread> submitters;
  for (unsigned seed = 21; seed <= 22; ++seed) {
    submitters.emplace_back(
        [&, seed] { submit_for_a_while(pool, world, expected, seed, deadline, &made); });
  }
  for (const int wait : {1000, 200, 0, 500}) {
    read_microseconds = wait;
    sleep_microseconds(static_cast<int>(seconds * 250000));
  }
  for (std::thread& each : submitters) each.join();
  CHECK(made > 0);
  Job left(world, world.files.on_disk, every_file(), 1);
  left.submit(pool);
  sleep_microseconds(700);  // some files are read, some are being read, some are not
  hr_pool_destroy(pool);
  CHECK(left.wait(0));
  left.cancel();
  expected.check(left);
  read_microseconds = 0;
}

// A thread that never comes back from a read is left behind, and its batch is finished when it
// does.
void stuck_in_a_read(const World& world, const Expected& expected) {
  hr_pool* pool = make_pool(1, 0);
  Job job(world, world.files.on_disk, every_file(), 0);
  reads_held_up = true;
  job.submit(pool);
  while (!reads_waiting.load()) CHECK(!job.wait(1));
  hr_pool_destroy(pool);
  CHECK(!job.wait(0));
  reads_held_up = false;
  job.finish();
  job.cancel();
  CHECK(expected.check(job) == 1);
}

// In the child: the parent's pool and batch refuse everything, and can be forgotten; a pool of its
// own works.
[[noreturn]] void child(hr_pool* parents, Job* job, const World& world, const Expected& expected) {
  hr_stats stats{};
  hr_batch* batch = nullptr;
  hr_request request{};
  CHECK(hr_pool_stats(parents, &stats) == HR_INVALID_ARGUMENT);
  CHECK(std::strstr(hr_last_error(), "fork") != nullptr);
  CHECK(hr_batch_submit(parents, &request, &batch) == HR_INVALID_ARGUMENT);
  CHECK(hr_batch_wait(job->batch(), 0) == HR_INVALID_ARGUMENT);
  CHECK(hr_batch_cancel(job->batch()) == HR_INVALID_ARGUMENT);
  CHECK(std::strstr(hr_last_error(), "fork") != nullptr);
  hr_batch_free(job->batch());
  hr_pool_destroy(parents);
  hr_pool* own = make_pool(2, 0);
  Job again(world, world.files.on_disk, every_file(), 1);
  again.submit(own);
  again.finish();
  CHECK(expected.check(again) == kFiles);
  hr_pool_destroy(own);
  std::_Exit(0);
}

// Forks while threads of the pool work and others submit to it.
void forked_at_work(const World& world, const Expected& expected, double seconds) {
  hr_pool* pool = make_pool(2, 0);
  const Deadline deadline(seconds);
  std::atomic<int64_t> made{0};
  std::thread submitter([&] { submit_for_a_while(pool, world, expected, 31, deadline, &made); });
  do {
    Job job(world, world.files.on_disk, every_file(), 2);
    job.submit(pool);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) child(pool, &job, world, expected);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    job.finish();  // the child has taken nothing away
    CHECK(expected.check(job) == kFiles);
  } while (!deadline.passed());
  submitter.join();
  hr_pool_destroy(pool);
}

#if defined(__has_feature)
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif

// The sanitizers' runtimes can't start threads, or allocate, in every child of a process that had
// threads when it forked.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    HAS_FEATURE(address_sanitizer) || HAS_FEATURE(thread_sanitizer)
constexpr bool kForks = false;
#else
constexpr bool kForks = true;
#endif

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 4;
  alarm(240);  // a hang ends as a failure
  const World world;
  const Expected expected(world);
  const int threads[][2] = {{0, 0}, {1, 0}, {3, 2}};
  for (const auto& [decode, read] : threads) {
    many_submitters(world, expected, decode, read, seconds / 8);
  }
  cancelled_by_others(world, expected, seconds / 8);
  destroyed_at_work(world, expected, seconds / 8);
  with_readers(world, expected, seconds / 4);
  stuck_in_a_read(world, expected);
  if (kForks) forked_at_work(world, expected, seconds / 8);
  std::printf("test_pool: passed%s\n", kForks ? "" : ", but for fork, which sanitizers can't take");
  return 0;
}
