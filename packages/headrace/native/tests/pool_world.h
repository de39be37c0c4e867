// Files of all kinds, batches of them, and what every one of their samples must be.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "headrace.h"
#include "jpegs.h"
#include "ops.h"

constexpr int kSize = 32;  // of every sample
constexpr size_t kSampleBytes = size_t{3} * kSize * kSize;
constexpr int kGoodFiles = 20;
constexpr int kFiles = kGoodFiles + 4;
constexpr int kSeeds = 3;

// A folder with images of all kinds, and at its end what can't be decoded or read: a file cut
// short, one that is no image, a folder, and nothing at all.
class Files {
 public:
  Files() {
    std::string pattern = "/tmp/headrace-stress-XXXXXX";
    CHECK(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    for (int i = 0; i < kFiles; ++i) contents_.push_back(content(i));
    for (int i = 0; i < kFiles; ++i) {
      offsets_.push_back(paths_.size());
      paths_ += path(i);
      paths_ += '\0';
      if (i < kFiles - 2) write(path(i), contents_[static_cast<size_t>(i)]);
      sizes_.push_back(contents_[static_cast<size_t>(i)].size());
      contents_[static_cast<size_t>(i)].resize(sizes_.back() + kReadablePadding);
      data_.push_back(contents_[static_cast<size_t>(i)].data());
    }
    CHECK(mkdir(path(kFiles - 2).c_str(), 0700) == 0);
    on_disk.count = in_memory.count = kFiles;
    on_disk.paths = paths_.data();
    on_disk.path_offsets = offsets_.data();
    in_memory.data = data_.data();
    in_memory.sizes = sizes_.data();
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() {
    for (int i = 0; i < kFiles; ++i) std::remove(path(i).c_str());
    std::remove(folder_.c_str());
  }

  hr_source on_disk{};
  hr_source in_memory{};

 private:
  static std::vector<uint8_t> content(int i) {
    if (i >= kFiles - 3) return {'n', 'o', ' ', 'p', 'i', 'c', 't', 'u', 'r', 'e'};
    JpegKind kind;
    kind.restart_interval = i % 3 == 0 ? 2 : 0;
    kind.progressive = i % 5 == 1;
    kind.components = i % 7 == 2 ? 1 : 3;
    std::vector<uint8_t> jpeg = make_jpeg(40 + 5 * i, 70 + 3 * i, i, kind);
    if (i >= kGoodFiles) jpeg.resize(jpeg.size() / 2);
    return jpeg;
  }
  static void write(const std::string& path, const std::vector<uint8_t>& bytes) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    CHECK(file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    CHECK(std::fclose(file) == 0);
  }
  std::string path(int i) const { return folder_ + "/" + std::to_string(i) + ".jpg"; }

  std::string folder_;
  std::string paths_;
  std::vector<uint64_t> offsets_;
  std::vector<std::vector<uint8_t>> contents_;
  std::vector<const uint8_t*> data_;
  std::vector<uint64_t> sizes_;
};

// RandomResizedCrop and a flip, uint8, with every decoder allowed.
struct Pipeline {
  Pipeline() {
    pipeline.ops = ops;
    pipeline.op_count = 2;
    pipeline.height = pipeline.width = kSize;
    pipeline.decoders = ~0U;
    pipeline.channels = 3;
  }
  hr_op ops[2] = {random_resized_crop(kSize, kSize), make_op("horizontal_flip", {0.5})};
  hr_pipeline pipeline{};
};

struct World {
  Files files;
  Pipeline how;
};

// One batch, and the memory that it is written to.
class Job {
 public:
  Job(const World& world, const hr_source& source, std::vector<int64_t> indices, uint64_t seed)
      : indices_(std::move(indices)),
        pixels_(indices_.size() * kSampleBytes),
        statuses_(indices_.size()) {
    for (hr_status& status : statuses_) status.code = -1;
    request_.pipeline = &world.how.pipeline;
    request_.source = &source;
    request_.indices = indices_.data();
    request_.count = static_cast<int64_t>(indices_.size());
    request_.seed = seed;
    request_.output = pixels_.data();
    request_.statuses = statuses_.data();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() { hr_batch_free(batch_); }

  void submit(hr_pool* pool) { CHECK(hr_batch_submit(pool, &request_, &batch_) == HR_OK); }
  void cancel() {
    cancelled_ = true;
    CHECK(hr_batch_cancel(batch_) == HR_OK);
  }
  bool wait(int milliseconds) {
    const int32_t code = hr_batch_wait(batch_, milliseconds);
    CHECK(code == HR_OK || code == HR_TIMEOUT);
    return code == HR_OK;
  }
  void finish() {
    while (!wait(20)) {
    }
  }

  size_t size() const { return indices_.size(); }
  int64_t index(size_t i) const { return indices_[i]; }
  uint64_t seed() const { return request_.seed; }
  const hr_status& status(size_t i) const { return statuses_[i]; }
  const uint8_t* pixels(size_t i) const { return pixels_.data() + i * kSampleBytes; }
  bool cancelled() const { return cancelled_; }
  hr_batch* batch() const { return batch_; }

 private:
  std::vector<int64_t> indices_;
  std::vector<uint8_t> pixels_;
  std::vector<hr_status> statuses_;
  hr_request request_{};
  hr_batch* batch_ = nullptr;
  std::atomic<bool> cancelled_{false};
};

inline std::vector<int64_t> every_file() {
  std::vector<int64_t> indices;
  for (int i = 0; i < kFiles; ++i) indices.push_back(i);
  return indices;
}

// What one thread alone makes of every file with every seed.
class Expected {
 public:
  explicit Expected(const World& world) {
    hr_pool* pool = nullptr;
    CHECK(hr_pool_create(0, 0, &pool) == HR_OK);
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      jobs_.push_back(std::make_unique<Job>(world, world.files.on_disk, every_file(), seed));
      jobs_.back()->submit(pool);
      jobs_.back()->finish();
    }
    hr_pool_destroy(pool);
    const Job& first = *jobs_.front();
    for (size_t i = 0; i < kGoodFiles; ++i) CHECK(first.status(i).code == HR_OK);
    for (size_t i = kGoodFiles; i < kGoodFiles + 2; ++i) {
      CHECK(first.status(i).code == HR_CORRUPT || first.status(i).code == HR_UNSUPPORTED);
    }
    CHECK(first.status(kFiles - 2).sys_errno == EISDIR);
    CHECK(first.status(kFiles - 1).sys_errno == ENOENT);
    CHECK(std::memcmp(first.pixels(0), jobs_.back()->pixels(0), kSampleBytes) != 0);
  }

  // Of a job that is finished. Returns how many of its samples were not cancelled. `in_memory`:
  // from bytes, where nothing can fail to be read.
  int64_t check(const Job& job, bool in_memory = false) const {
    int64_t made = 0;
    for (size_t i = 0; i < job.size(); ++i) {
      const auto file = static_cast<size_t>(job.index(i));
      const Job& alone = *jobs_[job.seed()];
      const hr_status& want = alone.status(file);
      const hr_status& have = job.status(i);
      if (have.code == HR_CANCELLED) {
        CHECK(job.cancelled());
        continue;
      }
      ++made;
      if (in_memory && want.code == HR_READ_FAILED) {
        CHECK(have.code == HR_UNSUPPORTED);
        continue;
      }
      CHECK(have.code == want.code && have.sys_errno == want.sys_errno);
      CHECK(have.decoder == want.decoder && have.width == want.width);
      if (have.code != HR_OK) continue;
      CHECK(std::memcmp(job.pixels(i), alone.pixels(file), kSampleBytes) == 0);
    }
    return made;
  }

 private:
  std::vector<std::unique_ptr<Job>> jobs_;
};
