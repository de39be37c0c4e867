#include "random.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <utility>
#include <vector>

namespace headrace {
namespace {

// splitmix64's finaliser (Steele, Lea, Flood 2014): spreads (seed, epoch, occurrence) over the 64
// bits of the key.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

RandomStream::RandomStream(const RandomKey& key, uint32_t step) {
  uint64_t mixed = mix(mix(key.seed) ^ key.epoch);
  if (key.occurrence != 0) mixed = mix(mixed ^ key.occurrence);
  key_[0] = static_cast<uint32_t>(mixed);
  key_[1] = static_cast<uint32_t>(mixed >> 32);
  counter_[0] = 0;
  counter_[1] = step;
  counter_[2] = static_cast<uint32_t>(key.index);
  counter_[3] = static_cast<uint32_t>(key.index >> 32);
}

uint32_t RandomStream::next() {
  if (used_ == 4) refill();
  return block_[used_++];
}

float RandomStream::uniform(float low, float high) {
  constexpr uint32_t kMask = (1u << 24) - 1;
  const float unit = static_cast<float>(next() & kMask) * (1.0f / (1u << 24));
  return unit * (high - low) + low;
}

int RandomStream::below(int n) {
  return static_cast<int>((static_cast<uint64_t>(next()) * static_cast<uint64_t>(n)) >> 32);
}

// Of Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
double RandomStream::gamma(double alpha) {
  if (alpha == 1) return -std::log(open_unit());
  if (alpha < 1) {
    const double factor = std::pow(open_unit(), 1 / alpha);
    return gamma(alpha + 1) * factor;
  }
  constexpr double kTwoPi = 6.283185307179586;
  const double d = alpha - 1.0 / 3.0, c = 1 / std::sqrt(9 * d);
  for (int round = 0; round < 100; ++round) {  // one in 20 is rejected
    const double radius = std::sqrt(-2 * std::log(open_unit()));
    const double normal = radius * std::cos(kTwoPi * unit());
    const double root = 1 + c * normal, cube = root * root * root;
    const double u = open_unit();
    if (root > 0 && std::log(u) < normal * normal / 2 + d - d * cube + d * std::log(cube))
      return d * cube;
  }
  return d;
}

void RandomStream::shares(double alpha, int count, float* out) {
  std::vector<double> gammas;
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    gammas.push_back(std::max(DBL_MIN, gamma(alpha)));
    sum += gammas.back();
  }
  std::transform(gammas.begin(), gammas.end(), out,
                 [sum](double each) { return static_cast<float>(each / sum); });
}

void RandomStream::shuffle(int* numbers, int n) {
  for (int last = n - 1; last > 0; --last) std::swap(numbers[last], numbers[below(last + 1)]);
}

void RandomStream::refill() {
  uint32_t c0 = counter_[0], c1 = counter_[1], c2 = counter_[2], c3 = counter_[3];
  uint32_t k0 = key_[0], k1 = key_[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c0;
    const uint64_t p1 = 0xCD9E8D57ull * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  block_[0] = c0;
  block_[1] = c1;
  block_[2] = c2;
  block_[3] = c3;
  ++counter_[0];
  used_ = 0;
}

}  // namespace headrace
