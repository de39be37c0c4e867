#include "device.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <vector>

namespace simulated {
namespace {

constexpr int kPoison = 0x7F;  // no small number in any type
constexpr size_t kReserved = size_t{64} << 30;  // addresses of a device

std::atomic<bool> in_use{false};
std::atomic<bool> forked{false};

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

void sleep_for(double seconds) {
    if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void check_process() {
    if (forked) throw std::runtime_error("the simulated accelerator was in use when this process was forked");
    if (!in_use.exchange(true)) {
        pthread_atfork(nullptr, nullptr, [] { forked = true; });
    }
}

struct Errors {
    std::mutex mutex;
    std::string first;
};

Errors& errors() {
    static auto* all = new Errors;
    return *all;
}

void report(const std::string& text) {
    std::lock_guard lock(errors().mutex);
    if (errors().first.empty()) errors().first = text.substr(0, text.find("\nException raised"));
}

// Never destroyed: threads may be waiting in it when the process ends.
class Queue {
  public:
    void push(Entry entry, bool delayed, double seconds = 0) {
        std::lock_guard lock(mutex_);
        if (!started_) {
            std::thread([this] { run(); }).detach();
            started_ = true;
        }
        entries_.push_back({std::move(entry), seconds + (delayed ? draw() : 0)});
        ++pushed_;
        changed_.notify_all();
    }

    bool idle() {
        std::lock_guard lock(mutex_);
        return done_ == pushed_;
    }

    void synchronize() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this, until = pushed_] { return done_ >= until; });
    }

    void seed(uint64_t seed, double mean) {
        std::lock_guard lock(mutex_);
        random_.seed(seed);
        // Some streams are quick and some lag far behind: a race needs a difference.
        constexpr double kTempers[] = {0.02, 0.3, 1, 2.68};
        mean_ = mean * kTempers[random_() % 4];
    }

  private:
    struct Delayed {
        Entry entry;
        double delay;
    };

    double draw() {
        if (mean_ == 0 || random_() % 2 == 0) return 0;
        return std::exponential_distribution<double>(0.5 / mean_)(random_);
    }

    void run() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return !entries_.empty(); });
            Delayed next = std::move(entries_.front());
            entries_.pop_front();
            lock.unlock();
            sleep_for(next.delay);
            try {
                next.entry();
            } catch (const std::exception& error) {
                report(error.what());
            }
            next.entry = nullptr;
            lock.lock();
            ++done_;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Delayed> entries_;
    uint64_t pushed_ = 0, done_ = 0;
    bool started_ = false;
    std::mt19937_64 random_;
    double mean_ = 0;
};

Queue& queue(int device, int stream) {
    static auto* all = new Queue[kDevices * kStreams];
    return all[device * kStreams + stream];
}

struct Block {
    size_t bytes;
    int device, stream;
    std::vector<Recorded> uses;
    std::vector<std::pair<int, int>> used_on;
};

bool all_over(const std::vector<Recorded>& moments) {
    for (const Recorded& moment : moments) {
        if (!moment->over()) return false;
    }
    return true;
}

struct Arena {
    char* shown = nullptr;   // without access rights
    char* hidden = nullptr;  // the same memory
    size_t end = 0;          // bytes that were ever given out
    size_t used = 0, peak = 0;
    std::map<std::pair<int, size_t>, std::vector<char*>> free;  // by stream and size

    void map_memory() {
        const int fd = memfd_create("simulated-device", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, kReserved) != 0) throw std::bad_alloc();
        void* both[] = {mmap(nullptr, kReserved, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0),
                        mmap(nullptr, kReserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)};
        close(fd);
        for (void* each : both) {
            if (each == MAP_FAILED) throw std::bad_alloc();
            madvise(each, kReserved, MADV_DONTFORK);
            madvise(each, kReserved, MADV_DONTDUMP);
        }
        shown = static_cast<char*>(both[0]);
        hidden = static_cast<char*>(both[1]);
    }
};

struct Memory {
    std::mutex mutex;
    Arena arenas[kDevices];
    std::unordered_map<char*, Block> blocks;  // in use
    std::vector<std::pair<char*, Block>> leaving;  // freed, but recorded on streams that are still busy

    std::map<char*, size_t> pinned;  // all that was ever page-locked
    std::unordered_map<size_t, std::vector<char*>> free_pinned;
    std::unordered_map<char*, std::vector<Recorded>> copies;
    std::vector<std::pair<char*, std::vector<Recorded>>> leaving_pinned;
};

Memory& memory() {
    static auto* all = new Memory;
    return *all;
}

Behavior behavior;

void give_back(char* start, const Block& block) {
    Arena& arena = memory().arenas[block.device];
    char* hidden = arena.hidden + (start - arena.shown);
    queue(block.device, block.stream).push([hidden, n = block.bytes] { std::memset(hidden, kPoison, n); }, false);
    arena.free[{block.stream, block.bytes}].push_back(start);
    arena.used -= block.bytes;
}

void give_back_pinned(char* start) {
    const size_t bytes = memory().pinned[start];
    std::memset(start, kPoison, bytes);
    memory().free_pinned[bytes].push_back(start);
}

// Calls `end` with those of `leaving` whose moments are over.
template <typename T, typename Moments, typename End>
void settle(std::vector<T>& leaving, Moments moments, End end) {
    std::vector<T> staying;
    for (T& each : leaving) {
        if (all_over(moments(each))) end(each);
        else staying.push_back(std::move(each));
    }
    leaving.swap(staying);
}

void settle_all() {
    settle(memory().leaving, [](auto& each) -> auto& { return each.second.uses; },
           [](auto& each) { give_back(each.first, each.second); });
    settle(memory().leaving_pinned, [](auto& each) -> auto& { return each.second; },
           [](auto& each) { give_back_pinned(each.first); });
}

char* pinned_start(const void* address) {
    auto& pinned = memory().pinned;
    auto* wanted = static_cast<char*>(const_cast<void*>(address));
    auto after = pinned.upper_bound(wanted);
    if (after == pinned.begin()) return nullptr;
    --after;
    return wanted < after->first + after->second ? after->first : nullptr;
}

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void Moment::happen() {
    std::lock_guard lock(mutex_);
    over_ = true;
    seconds_ = now();
    changed_.notify_all();
}

void Moment::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over_; });
}

bool Moment::over() {
    std::lock_guard lock(mutex_);
    return over_;
}

double Moment::seconds() {
    std::lock_guard lock(mutex_);
    return seconds_;
}

void enqueue(int device, int stream, Entry entry, size_t copied_bytes) {
    check_process();
    const double rate = behavior.copy_bytes_per_second;
    queue(device, stream).push(std::move(entry), true, rate > 0 ? copied_bytes / rate : 0);
}

void enqueue_wait(int device, int stream, Recorded moment) {
    check_process();
    queue(device, stream).push([moment = std::move(moment)] { moment->wait(); }, false);
}

void enqueue_busy(int device, int stream, double seconds) {
    check_process();
    queue(device, stream).push([] {}, false, seconds);
}

Recorded record(int device, int stream) {
    check_process();
    auto moment = std::make_shared<Moment>();
    queue(device, stream).push([moment] { moment->happen(); }, false);
    return moment;
}

bool is_idle(int device, int stream) { return forked || queue(device, stream).idle(); }

void synchronize(int device, int stream) {
    if (!forked) queue(device, stream).synchronize();
}

void synchronize_device(int device) {
    for (int stream = 0; stream < kStreams; ++stream) synchronize(device, stream);
}

void configure(const Behavior& wanted) {
    for (int device = 0; device < kDevices; ++device) synchronize_device(device);
    behavior = wanted;
    std::seed_seq sequence{wanted.seed, wanted.seed >> 32};
    std::vector<uint32_t> seeds(kDevices * kStreams);
    sequence.generate(seeds.begin(), seeds.end());
    for (int i = 0; i < kDevices * kStreams; ++i) {
        queue(i / kStreams, i % kStreams).seed(seeds[i], wanted.mean_delay);
    }
}

std::string take_error() {
    std::lock_guard lock(errors().mutex);
    return std::exchange(errors().first, "");
}

bool was_forked_in_use() { return forked; }

void* allocate(int device, int stream, size_t bytes) {
    check_process();
    std::lock_guard lock(memory().mutex);
    settle_all();
    Arena& arena = memory().arenas[device];
    if (arena.shown == nullptr) arena.map_memory();
    bytes = rounded(bytes, 512);
    if (arena.used + bytes > kCapacity) throw std::bad_alloc();
    auto& free = arena.free[{stream, bytes}];
    char* start;
    if (!free.empty()) {
        start = free.back();  // the one that was freed last: the sooner it is used again, the better
        free.pop_back();
    } else {
        if (arena.end + bytes > kReserved) throw std::bad_alloc();
        start = arena.shown + arena.end;
        arena.end += bytes;
    }
    arena.used += bytes;
    arena.peak = std::max(arena.peak, arena.used);
    memory().blocks[start] = Block{bytes, device, stream, {}, {}};
    return start;
}

void release(void* address) {
    if (forked) return;  // it is the parent's
    std::lock_guard lock(memory().mutex);
    auto* start = static_cast<char*>(address);
    auto found = memory().blocks.find(start);
    if (found == memory().blocks.end()) return;
    Block block = std::move(found->second);
    memory().blocks.erase(found);
    for (auto [device, stream] : block.used_on) block.uses.push_back(record(device, stream));
    if (block.uses.empty()) give_back(start, block);
    else memory().leaving.emplace_back(start, std::move(block));
    settle_all();
}

void record_use(void* address, int device, int stream) {
    check_process();
    std::lock_guard lock(memory().mutex);
    auto found = memory().blocks.find(static_cast<char*>(address));
    if (found == memory().blocks.end()) return;
    Block& block = found->second;
    if (block.device == device && block.stream == stream) return;
    for (auto& each : block.used_on) {
        if (each == std::pair(device, stream)) return;
    }
    block.used_on.emplace_back(device, stream);
}

void* kernel_address(const void* address) {
    const int device = device_of(address);
    if (device < 0) return const_cast<void*>(address);
    Arena& arena = memory().arenas[device];
    return arena.hidden + (static_cast<const char*>(address) - arena.shown);
}

int device_of(const void* address) {
    for (int device = 0; device < kDevices; ++device) {
        const char* start = memory().arenas[device].shown;
        if (start != nullptr && address >= start && address < start + kReserved) return device;
    }
    return -1;
}

size_t used_bytes(int device) {
    std::lock_guard lock(memory().mutex);
    return memory().arenas[device].used;
}

size_t peak_bytes(int device, bool reset) {
    std::lock_guard lock(memory().mutex);
    Arena& arena = memory().arenas[device];
    if (reset) arena.peak = arena.used;
    return arena.peak;
}

void* allocate_host(size_t bytes) {
    check_process();
    std::lock_guard lock(memory().mutex);
    settle_all();
    bytes = rounded(bytes, 4096);
    auto& free = memory().free_pinned[bytes];
    if (!free.empty()) {
        char* start = free.back();
        free.pop_back();
        return start;
    }
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    std::memset(start, kPoison, bytes);
    memory().pinned[static_cast<char*>(start)] = bytes;
    return start;
}

void release_host(void* address) {
    if (forked) return;
    std::lock_guard lock(memory().mutex);
    auto* start = static_cast<char*>(address);
    auto copies = memory().copies.extract(start);
    if (copies.empty() || behavior.forgetful || all_over(copies.mapped())) give_back_pinned(start);
    else memory().leaving_pinned.emplace_back(start, std::move(copies.mapped()));
}

bool is_pinned(const void* address) {
    if (forked) return false;
    std::lock_guard lock(memory().mutex);
    return pinned_start(address) != nullptr;
}

void record_copy(const void* address, int device, int stream) {
    Recorded moment = record(device, stream);
    std::lock_guard lock(memory().mutex);
    char* start = pinned_start(address);
    if (start == nullptr) return;
    auto& copies = memory().copies[start];
    while (!copies.empty() && copies.front()->over()) copies.erase(copies.begin());
    copies.push_back(std::move(moment));
}

}  // namespace simulated
