// Random numbers as a pure function of (seed, epoch, index of the sample, occurrence, step): no
// state, no order of calls between samples.
#pragma once

#include <cstdint>

namespace headrace {

struct RandomKey {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  uint64_t index = 0;
  uint64_t occurrence = 0;  // tells apart the times that an index comes in an epoch
};

// The stream of one step of one sample: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011), keyed by the seed mixed with the epoch and the
// occurrence; the counter holds the index, the step and the position in the stream.
class RandomStream {
 public:
  RandomStream(const RandomKey& key, uint32_t step);

  uint32_t next();

  // In [low, high), from 24 random bits in float32 arithmetic, as torch.Tensor.uniform_ does on the
  // CPU.
  float uniform(float low, float high);

  // In [0, n), n > 0, without bias that 2^-32 could show: the high half of a 32 × 32 bit product.
  int below(int n);

  // As Python's random.random: 24 random bits, in [0, 1).
  double unit() { return static_cast<double>(uniform(0.0f, 1.0f)); }

  // `count` shares that add up to 1, of a Dirichlet distribution whose parameters are all `alpha`.
  void shares(double alpha, int count, float* out);

  // Any order of the n numbers is as likely as any other (Fisher and Yates, from the end).
  void shuffle(int* numbers, int n);

 private:
  double open_unit() { return unit() + 0x1p-25; }  // in (0, 1)
  double gamma(double alpha);
  void refill();

  uint32_t key_[2];
  uint32_t counter_[4];
  uint32_t block_[4] = {};
  int used_ = 4;
};

}  // namespace headrace
