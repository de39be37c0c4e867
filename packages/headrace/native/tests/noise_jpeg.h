// Baseline JPEGs of random coefficients, made without a JPEG library.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

struct NoiseJpeg {
  int width = 16;
  int height = 16;
  int components = 3;  // 1 or 3
  int h = 1;           // sampling factors of luma; chroma's are 1
  int v = 1;
  int restart_interval = 0;
  int magnitude = 10;  // sizes of coefficients: 0 to this many bits, at most 10
};

class NoiseJpegWriter {
 public:
  NoiseJpegWriter(const NoiseJpeg& kind, unsigned seed) : kind_(kind), random_(seed) {}

  std::vector<uint8_t> write() {
    put({0xFF, 0xD8});
    put_tables();
    put_frame();
    put_scan();
    put({0xFF, 0xD9});
    return bytes_;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  void put(std::initializer_list<int> bytes) {
    for (const int each : bytes) bytes_.push_back(static_cast<uint8_t>(each));
  }

  // Codes of equal length, so that every code is its symbol: 12 DC sizes in 4 bits, 255 AC symbols
  // in 8.
  void put_tables() {
    put({0xFF, 0xDB, 0, 67, 0});
    for (int i = 0; i < 64; ++i) put({1 + below(40)});
    put({0xFF, 0xC4, 0, 19 + 12, 0x00, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    for (int i = 0; i < 12; ++i) put({i});
    put({0xFF, 0xC4, 1, 18, 0x10, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0});
    for (int i = 0; i < 255; ++i) put({i});
    if (kind_.restart_interval > 0)
      put({0xFF, 0xDD, 0, 4, kind_.restart_interval >> 8, kind_.restart_interval & 0xFF});
  }

  void put_frame() {
    put({0xFF, 0xC0, 0, 8 + 3 * kind_.components, 8, kind_.height >> 8, kind_.height & 0xFF,
         kind_.width >> 8, kind_.width & 0xFF, kind_.components});
    put({1, kind_.h << 4 | kind_.v, 0});
    for (int i = 1; i < kind_.components; ++i) put({i + 1, 0x11, 0});
    put({0xFF, 0xDA, 0, 6 + 2 * kind_.components, kind_.components});
    for (int i = 0; i < kind_.components; ++i) put({i + 1, 0x00});
    put({0, 63, 0});
  }

  void put_scan() {
    const bool interleaved = kind_.components > 1;
    const int mcu_w = 8 * (interleaved ? kind_.h : 1), mcu_h = 8 * (interleaved ? kind_.v : 1);
    const int mcus = (kind_.width + mcu_w - 1) / mcu_w * ((kind_.height + mcu_h - 1) / mcu_h);
    const int blocks = interleaved ? kind_.h * kind_.v + 2 : 1;
    for (int mcu = 0; mcu < mcus; ++mcu) {
      const int interval = kind_.restart_interval;
      if (interval > 0 && mcu > 0 && mcu % interval == 0) {
        flush();
        put({0xFF, 0xD0 + (mcu / interval - 1) % 8});
      }
      for (int i = 0; i < blocks; ++i) put_block();
    }
    flush();
  }

  void put_block() {
    put_value(below(kind_.magnitude + 1), 0, 4);
    const int last = below(4) == 0 ? 0 : below(64);
    int at = 0;
    while (at < last) {
      const int run = below(4) == 0 ? below(16) : 0;
      if (at + run + 1 > last) break;
      put_value(1 + below(kind_.magnitude), run, 8);
      at += run + 1;
    }
    if (at < 63) put_bits(0, 8);
  }

  // The code of `length` bits for a run of zeros and a value of `size` bits, and any such value.
  void put_value(int size, int run, int length) {
    put_bits(static_cast<uint32_t>(run << 4 | size), length);
    put_bits(static_cast<uint32_t>(below(1 << size)), size);
  }

  void put_bits(uint32_t bits, int count) {
    for (int i = count - 1; i >= 0; --i) {
      byte_ = byte_ << 1 | (bits >> i & 1);
      if (++filled_ < 8) continue;
      put({static_cast<int>(byte_ & 0xFF)});
      if ((byte_ & 0xFF) == 0xFF) put({0});
      filled_ = 0;
    }
  }
  void flush() {
    while (filled_ != 0) put_bits(1, 1);
  }

  NoiseJpeg kind_;
  std::mt19937 random_;
  std::vector<uint8_t> bytes_;
  uint32_t byte_ = 0;
  int filled_ = 0;
};
