// Numbers of libjpeg's accurate integer inverse DCT, which every instruction set's form of it uses.
#pragma once

#include <cstdint>

namespace headrace::jpeg::own {

constexpr int kPass1Bits = 2;  // of fraction that are kept between the passes
constexpr int kShift1 = 13 - kPass1Bits;
constexpr int kShift2 = 13 + kPass1Bits + 3;

// Constants of T.81's factored DCT, with 13 bits of fraction.
constexpr int32_t kF0298 = 2446;   // 0.298631336
constexpr int32_t kF0390 = 3196;   // 0.390180644
constexpr int32_t kF0541 = 4433;   // 0.541196100
constexpr int32_t kF0765 = 6270;   // 0.765366865
constexpr int32_t kF0899 = 7373;   // 0.899976223
constexpr int32_t kF1175 = 9633;   // 1.175875602
constexpr int32_t kF1501 = 12299;  // 1.501321110
constexpr int32_t kF1847 = 15137;  // 1.847759065
constexpr int32_t kF1961 = 16069;  // 1.961570560
constexpr int32_t kF2053 = 16819;  // 2.053119869
constexpr int32_t kF2562 = 20995;  // 2.562915447
constexpr int32_t kF3072 = 25172;  // 3.072711026

}  // namespace headrace::jpeg::own
