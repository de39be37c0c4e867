// An accelerator in software, made to show races: see README.md. Nothing here knows torch.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace simulated {

constexpr int kDevices = 2;
constexpr int kStreams = 9;  // of a device: the default one, and eight that are lent in turn
constexpr size_t kCapacity = size_t{4} << 30;  // bytes of memory of a device

// How entries of streams are delayed, and what happens to page-locked memory that is freed.
struct Behavior {
    uint64_t seed = 0;
    double mean_delay = 0;             // seconds, on average over all streams; 0 is no random delay
    double copy_bytes_per_second = 0;  // 0: copies take no time of their own
    // Page-locked memory is used again as soon as it is freed, even if copies are queued that read it, as memory
    // is that others have locked. Torch's own waits for these copies.
    bool forgetful = false;
};

// One recording of an event.
class Moment {
  public:
    void happen();
    void wait();
    bool over();
    double seconds();  // when it happened, on the clock of this machine

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
    double seconds_ = 0;
};

using Recorded = std::shared_ptr<Moment>;
using Entry = std::function<void()>;

// Work is done in the order in which it was queued, by a thread of each stream, each entry after a random delay.
void enqueue(int device, int stream, Entry entry, size_t copied_bytes = 0);
void enqueue_wait(int device, int stream, Recorded moment);
void enqueue_busy(int device, int stream, double seconds);
Recorded record(int device, int stream);
bool is_idle(int device, int stream);
void synchronize(int device, int stream);
void synchronize_device(int device);

// Waits for all streams, then behaves so from now on.
void configure(const Behavior& behavior);
// What went wrong on a stream since this was last asked, or "".
std::string take_error();
// Returns whether this process was forked from one that had used a device.
bool was_forked_in_use();

// Device memory: the address that is given out has no access rights; kernels use another address of it. Memory is
// allocated for a stream. Freed, it is overwritten as the next thing on that stream, once the streams have come
// to where they were that use was recorded on.
void* allocate(int device, int stream, size_t bytes);
void release(void* memory);
void record_use(void* memory, int device, int stream);
void* kernel_address(const void* memory);
int device_of(const void* memory);  // -1: not of a device
size_t used_bytes(int device);
size_t peak_bytes(int device, bool reset);  // the most that were used at a time since it was last reset

// Page-locked host memory, overwritten when it is freed (see `Behavior::forgetful`).
void* allocate_host(size_t bytes);
void release_host(void* memory);
bool is_pinned(const void* memory);
void record_copy(const void* memory, int device, int stream);

}  // namespace simulated
