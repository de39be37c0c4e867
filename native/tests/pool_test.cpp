// The pool from several threads at once: made for ThreadSanitizer and AddressSanitizer, and a test
// of the C ABI's promises without them: the same seed gives the same bytes, whoever computes them.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "headrace.h"
#include "jpegs.h"

namespace {

constexpr int kImages = 24;
constexpr int kSize = 48;
constexpr size_t kSampleBytes = 3 * kSize * kSize;

// Files in a folder of their own, and the hr_source that names them.
class Files {
 public:
  Files() {
    std::string pattern = "/tmp/headrace-pool-test-XXXXXX";
    CHECK(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    for (int i = 0; i < kImages; ++i) {
      JpegKind kind;
      kind.restart_interval = i % 3 == 0 ? 2 : 0;
      const std::vector<uint8_t> jpeg = make_jpeg(60 + 7 * i, 90 + 3 * i, i, kind);
      const std::string path = folder_ + "/" + std::to_string(i) + ".jpg";
      std::FILE* file = std::fopen(path.c_str(), "wb");
      CHECK(file != nullptr && std::fwrite(jpeg.data(), 1, jpeg.size(), file) == jpeg.size());
      std::fclose(file);
      offsets_.push_back(paths_.size());
      paths_ += path;
      paths_ += '\0';
    }
    offsets_.push_back(paths_.size());
    source.count = kImages;
    source.paths = paths_.data();
    source.path_offsets = offsets_.data();
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() {
    for (int i = 0; i < kImages; ++i)
      std::remove((folder_ + "/" + std::to_string(i) + ".jpg").c_str());
    std::remove(folder_.c_str());
  }

  hr_source source{};

 private:
  std::string folder_;
  std::string paths_;
  std::vector<uint64_t> offsets_;
};

// RandomResizedCrop and flip to kSize × kSize, uint8, with every decoder allowed.
struct Pipeline {
  Pipeline() {
    steps[0].kind = HR_RANDOM_RESIZED_CROP;
    steps[0].height = steps[0].width = kSize;
    steps[0].filter = 2;
    steps[0].scale[0] = 0.08F;
    steps[0].scale[1] = 1.0F;
    steps[0].log_ratio[0] = -0.28768F;
    steps[0].log_ratio[1] = 0.28768F;
    steps[0].ratio[0] = 0.75;
    steps[0].ratio[1] = 4.0 / 3.0;
    steps[1].kind = HR_HORIZONTAL_FLIP;
    steps[1].p = 0.5;
    pipeline.steps = steps;
    pipeline.step_count = 2;
    pipeline.height = pipeline.width = kSize;
    pipeline.decoders = ~0U;
  }
  hr_step steps[2] = {};
  hr_pipeline pipeline{};
};

// One batch of all images, and the memory that it is written to.
struct Job {
  Job(const Pipeline& how, const Files& files, uint64_t seed)
      : pixels(kImages * kSampleBytes), statuses(kImages) {
    for (int i = 0; i < kImages; ++i) indices.push_back(i);
    request.pipeline = &how.pipeline;
    request.source = &files.source;
    request.indices = indices.data();
    request.count = kImages;
    request.seed = seed;
    request.output = pixels.data();
    request.statuses = statuses.data();
  }
  void submit(hr_pool* pool) { CHECK(hr_batch_submit(pool, &request, &batch) == HR_OK); }
  void finish() {
    while (hr_batch_wait(batch, 50) != HR_OK) {
    }
    hr_batch_free(batch);
  }
  bool all_ok() const {
    for (const hr_status& status : statuses) {
      if (status.code != HR_OK) return false;
    }
    return true;
  }

  std::vector<uint8_t> pixels;
  std::vector<hr_status> statuses;
  std::vector<int64_t> indices;
  hr_request request{};
  hr_batch* batch = nullptr;
};

std::vector<uint8_t> reference(const Pipeline& how, const Files& files, uint64_t seed) {
  hr_pool* pool = nullptr;
  CHECK(hr_pool_create(0, 0, &pool) == HR_OK);  // in this thread alone
  Job job(how, files, seed);
  job.submit(pool);
  job.finish();
  CHECK(job.all_ok());
  hr_pool_destroy(pool);
  return job.pixels;
}

void several_in_flight(hr_pool* pool, const Pipeline& how, const Files& files, uint64_t seed,
                       const std::vector<uint8_t>& expected) {
  for (int round = 0; round < 4; ++round) {
    std::vector<std::unique_ptr<Job>> jobs;
    for (int i = 0; i < 3; ++i) {
      jobs.push_back(std::make_unique<Job>(how, files, seed));
      jobs.back()->submit(pool);
    }
    for (auto& job : jobs) {
      job->finish();
      CHECK(job->all_ok());
      CHECK(std::memcmp(job->pixels.data(), expected.data(), expected.size()) == 0);
    }
  }
}

void cancel_some(hr_pool* pool, const Pipeline& how, const Files& files) {
  for (int round = 0; round < 8; ++round) {
    Job job(how, files, 99);
    job.submit(pool);
    if (round % 2 == 0) CHECK(hr_batch_cancel(job.batch) == HR_OK);
    job.finish();
    for (const hr_status& status : job.statuses) {
      CHECK(status.code == HR_OK || status.code == HR_CANCELLED);
    }
  }
}

void watch(hr_pool* pool) {
  hr_stats stats{};
  for (int i = 0; i < 200; ++i) {
    CHECK(hr_pool_stats(pool, &stats) == HR_OK);
    CHECK(stats.samples >= 0 && stats.failed >= 0);
    std::this_thread::yield();
  }
}

void all_at_once(int decode_threads, int read_threads) {
  const Pipeline how;
  const Files files;
  const std::vector<uint8_t> first = reference(how, files, 1);
  const std::vector<uint8_t> second = reference(how, files, 2);
  CHECK(first != second);
  hr_pool* pool = nullptr;
  CHECK(hr_pool_create(decode_threads, read_threads, &pool) == HR_OK);
  std::vector<std::thread> callers;
  callers.emplace_back([&] { several_in_flight(pool, how, files, 1, first); });
  callers.emplace_back([&] { several_in_flight(pool, how, files, 2, second); });
  callers.emplace_back([&] { cancel_some(pool, how, files); });
  callers.emplace_back([&] { watch(pool); });
  for (std::thread& caller : callers) caller.join();
  hr_pool_destroy(pool);
}

}  // namespace

int main() {
  for (const int decode_threads : {0, 1, 3}) {
    for (const int read_threads : {0, 2}) all_at_once(decode_threads, read_threads);
  }
  std::puts("pool_test: passed");
  return 0;
}
