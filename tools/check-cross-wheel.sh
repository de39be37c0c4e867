#!/usr/bin/env bash
# Loads the native library of a wheel for AArch64 under qemu, and compares the pixels of three images (JPEG, PNG, WebP)
# with those that this machine's own library decodes. Skips with a message if qemu is missing.
# SYSROOT (see aarch64-sysroot.sh) is where libraries are looked for that wheels do not contain.
#   tools/check-cross-wheel.sh WHEEL SYSROOT FOLDER
set -euo pipefail
wheel=$(realpath "$1") sysroot=$(realpath "$2") folder=$(realpath -m "$3")
cd "$(dirname "$0")/.."

emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
if [ -z "$emulator" ]; then
  echo 'check-cross-wheel: qemu-aarch64 is not installed: the wheel is NOT tested' >&2
  exit 0
fi
python=${VENV:-.venv}/bin/python
rm -rf "$folder" && mkdir -p "$folder"
"$python" -m zipfile -e "$wheel" "$folder"

cat >"$folder/decode.c" <<'PROGRAM'
/* decode LIBRARY FILE...: the size and an FNV-1a hash of each file's pixels, by each decoder that accepts the file. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef const char* (*Name)(int32_t);
typedef int32_t (*Size)(const uint8_t*, uint64_t, int32_t*, int32_t*);
typedef int32_t (*Decode)(int32_t, const uint8_t*, uint64_t, const uint8_t*, uint64_t, int32_t, int32_t, int32_t, int32_t,
                          uint8_t*);

static void* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return found;
}

int main(int count, char** files) {
  void* library = dlopen(files[1], RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  Name decoder = (Name)symbol(library, "hr_decoder_name");
  Size size = (Size)symbol(library, "hr_image_size");
  Decode decode = (Decode)symbol(library, "hr_image_decode");
  for (int i = 2; i < count; ++i) {
    static uint8_t data[1 << 22];
    FILE* file = fopen(files[i], "rb");
    if (file == NULL) return 1;
    uint64_t length = fread(data, 1, sizeof data - 256, file);
    fclose(file);
    int32_t width, height;
    if (size(data, length, &width, &height) != 0) return 1;
    uint8_t* pixels = malloc((size_t)width * height * 4);
    int accepted = 0;
    for (int32_t d = 0; decoder(d) != NULL; ++d) {
      if (decode(d, data, length, NULL, 0, 0, 0, width, height, pixels) != 0) continue;
      uint64_t hash = 14695981039346656037u;
      for (size_t p = 0; p < (size_t)width * height * 4; ++p)
        if (p % 4 != 3) hash = (hash ^ pixels[p]) * 1099511628211u;
      printf("image %d, %dx%d, %s: %016llx\n", i - 1, width, height, decoder(d), (unsigned long long)hash);
      ++accepted;
    }
    free(pixels);
    if (accepted == 0) return 1;
  }
  return 0;
}
PROGRAM
"$python" - "$folder" <<'PROGRAM'
import sys
from pathlib import Path

from PIL import Image

for extension in ("jpg", "png", "webp"):
    Image.effect_noise((321, 243), 60).convert("RGB").save(Path(sys.argv[1], f"image.{extension}"), quality=90)
PROGRAM

here=$("$python" -c 'from headrace._native import ffi; print(ffi._find())')
there="$folder/headrace/_native/libheadrace.so"
cc -O1 "$folder/decode.c" -o "$folder/decode-here" -ldl
aarch64-linux-gnu-gcc -O1 "$folder/decode.c" -o "$folder/decode-there" -ldl
"$folder/decode-here" "$here" "$folder"/image.* >"$folder/here.txt"
"$emulator" -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$sysroot/lib/aarch64-linux-gnu" "$folder/decode-there" "$there" "$folder"/image.* >"$folder/there.txt"
cat "$folder/there.txt"
diff "$folder/here.txt" "$folder/there.txt"
echo "$(basename "$wheel"): loads on AArch64 and decodes the same pixels as this machine's library"
