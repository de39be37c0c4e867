// Uses the accelerator from several threads, for a sanitizer: torch is not instrumented, so nothing is seen through it.
// Prints how many values were wrong.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "device.h"

namespace {

constexpr int kBytes = 1024, kRounds = 300, kThreads = 3, kSeeds = 10;
std::atomic<int> wrong{0};

// Copies a value to a device on one stream and reads it on another, and drops all memory at once.
void use(unsigned seed) {
    using namespace simulated;
    std::mt19937 random(seed);
    for (int round = 0; round < kRounds; ++round) {
        const int device = random() % kDevices, side = random() % kStreams, user = random() % kStreams;
        const char value = random() % 100;
        void* host = allocate_host(kBytes);
        std::memset(host, value, kBytes);
        void* memory = allocate(device, side, kBytes);
        auto* there = static_cast<char*>(kernel_address(memory));
        enqueue(device, side, [there, host] { std::memcpy(there, host, kBytes); }, kBytes);
        record_copy(host, device, side);
        const Recorded copied = record(device, side);
        enqueue_wait(device, user, copied);
        record_use(memory, device, user);
        enqueue(device, user, [there, value] { wrong += there[0] != value || there[kBytes - 1] != value; });
        release(memory);
        release_host(host);
        if (random() % 8 == 0) copied->wait();
        if (copied->over() && copied->seconds() == 0) ++wrong;
        if (random() % 32 == 0) synchronize(device, user);
        is_idle(device, side);
        used_bytes(device);
    }
}

}  // namespace

int main() {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        simulated::configure({.seed = seed, .mean_delay = 1e-5});
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(use, seed * kThreads + i);
        for (auto& thread : threads) thread.join();
    }
    for (int device = 0; device < simulated::kDevices; ++device) simulated::synchronize_device(device);
    std::printf("%d wrong\n", wrong.load());
    return wrong != 0;
}
