/* The C ABI of Headrace's native core: everything that Python reaches, and all that it reaches.
 *
 * Every function that can fail returns an hr_code as int32_t; 0 is success. After a failure
 * hr_last_error() says more, in the calling thread, until its next failure. Nothing here prints,
 * aborts, throws or keeps a pointer beyond what is said. All structs are plain, with explicit
 * padding, so that ctypes mirrors them field by field (src/headrace/_native/abi.py).
 *
 * Threads: functions on different handles may run at the same time; on one pool, submit, wait,
 * cancel and stats may too. Fork: a pool belongs to the process that made it. In a forked child
 * every call on it fails with HR_INVALID_ARGUMENT, and hr_pool_destroy() only forgets it. */
#ifndef HEADRACE_H
#define HEADRACE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HR_API __attribute__((visibility("default")))
#else
#define HR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised with every change of a struct or signature below; Python refuses a library of another
 * number. */
#define HR_ABI_VERSION 25

#define HR_STAGES 5            /* read, parse, decode, resize, store */
#define HR_DECODERS 8          /* room for the decoders' table; unused entries are 0 */
#define HR_INFLATED (1u << 30) /* beside the decoders: the file is what hr_png_inflate() gave */
#define HR_LUMA (1u << 29) /* beside the decoders: all channels of a JPEG in color are its luma */
#define HR_PARAMS 24       /* of an op */
#define HR_DRAWS 32        /* of an op */

typedef enum hr_code { /* the same values as headrace::Code (status.h) */
                       HR_OK = 0,
                       HR_INVALID_ARGUMENT = 1,
                       HR_OUT_OF_MEMORY = 2,
                       HR_READ_FAILED = 3,
                       HR_UNSUPPORTED = 4,
                       HR_CORRUPT = 5,
                       HR_TOO_LARGE = 6,
                       HR_CANCELLED = 7,
                       HR_TIMEOUT = 8,
                       HR_INTERNAL = 9
} hr_code;

/* One transform, with torchvision's meaning on an RGB PIL image, and on one of mode L that is
 * carried as three equal channels. What its parameters and draws mean
 * is said in the op's own files: native/src/ops/NAME.cpp, and beside it in Python
 * src/headrace/transforms. */
typedef struct hr_op {
  int32_t id; /* by hr_op_id() */
  int32_t
      inside; /* that many ops after this one are inside of it: it says which of them to apply */
  double params[HR_PARAMS]; /* finite; those that the op doesn't use are 0 */
  const float* data;        /* [data_count] further numbers, for ops that need many; else NULL */
  int64_t data_count;
} hr_op;

/* What was drawn for one op; what the op doesn't use is 0. */
typedef struct hr_draw {
  double value[HR_DRAWS];
} hr_draw;

/* What happens to every sample of a batch. */
typedef struct hr_pipeline {
  const hr_op* ops; /* done in this order */
  int32_t op_count; /* 0 to 64 */
  int32_t height;   /* of every output, in pixels */
  int32_t width;
  int32_t dtype;                 /* 0 uint8, 1 float16, 2 bfloat16, 3 float32, 4 int64 */
  int32_t layout;                /* 0 NCHW, 1 NHWC */
  int32_t pillow_vertical_first; /* 1: resize like Pillow >= 13, 0: like Pillow 12 */
  uint32_t decoders;             /* bit i: decoder i of hr_decoder_name() may be used */
  /* Of every output: 3, or 1 for the first of three equal ones; 4: as Pillow keeps RGB in memory, a
   * fourth byte of 255 after each pixel (uint8 NHWC, no table) */
  int32_t channels;
  int32_t gray;    /* 1: files are decoded as convert("L") gives them, three times */
  int32_t upright; /* 1: files are turned as Pillow's exif_transpose() does, before all ops */
  int32_t views;   /* images that a sample consists of, which the ops give one below the other and
                    * which are stored one after the other, each of height / views; 0: one */
  int64_t max_pixels; /* images with more are HR_TOO_LARGE; 0: no limit */
  const void* table;  /* [channels][256] of dtype; NULL: the levels themselves (uint8 only) */
} hr_pipeline;

/* Where the bytes of sample i are. `paths`: all of the file whose zero-terminated path is at paths
 * + path_offsets[i]. `paths` and `begins`: the sizes[i] bytes from begins[i] on of the file whose
 * path is at paths + path_offsets[shards[i]]. `paths` NULL: the sizes[i] bytes at data[i], readable
 * for 256 bytes more.
 *
 * `height` other than 0 (with `paths` NULL): images that are decoded already, all of width × height
 * pixels. data[i] is the first one's red; further rows, columns and channels lie so many bytes on.
 */
typedef struct hr_source {
  int64_t count;
  const char* paths;
  const uint64_t* path_offsets;
  const uint8_t* const* data;
  const uint64_t* sizes;
  const uint64_t* begins;
  const uint32_t* shards;
  int64_t path_count; /* with `begins`: path_offsets has so many; other shards are HR_READ_FAILED */
  /* Optional: entry points of sample i are the bytes entry_begins[i] to entry_ends[i] - 1 of
   * `entries`, none where these are equal. They are ignored where entry_mtimes[i] isn't the file's
   * time of modification (nanoseconds since 1970; 0 for extents and data in memory); NULL: 0 for
   * all. */
  const uint8_t* entries;
  uint64_t entries_size; /* sample i has none where entry_ends[i] lies beyond */
  const uint64_t* entry_begins;
  const uint64_t* entry_ends;
  const int64_t* entry_mtimes;
  int32_t height; /* 0: the samples are image files */
  int32_t width;
  int64_t row_stride; /* in bytes; any of the three may be negative */
  int64_t column_stride;
  int64_t channel_stride;
} hr_source;

typedef struct hr_status {
  int32_t code;      /* hr_code */
  int32_t sys_errno; /* HR_READ_FAILED: why */
  int32_t decoder;   /* which decoder gave the pixels; -1: none */
  int32_t width;     /* of the image that the ops get, where its header could be read; else 0 */
  int32_t height;
} hr_status;

/* One batch to make. All memory named here, that of pipeline and source included, must live until
 * the batch is freed. */
typedef struct hr_request {
  const hr_pipeline* pipeline;
  const hr_source* source;
  const int64_t* indices; /* [count] which samples */
  /* [count] numbers that tell apart the times that an index comes in an epoch; NULL: all 0. */
  const int64_t* occurrences;
  int64_t count;
  uint64_t seed; /* with epoch, index and occurrence, all that random parameters depend on */
  uint64_t epoch;
  void* output;        /* [count] samples, one after the other */
  hr_status* statuses; /* [count]; a sample whose code isn't HR_OK has undefined pixels */
} hr_request;

typedef struct hr_stats {
  int64_t samples; /* made natively */
  int64_t failed;  /* left to the caller */
  int64_t bytes_read;
  int64_t pixels_decoded;
  int64_t stale_entries; /* samples whose entry points were ignored for their entry_mtimes */
  int64_t nanoseconds[HR_STAGES]; /* thread time by the wall clock */
  int64_t decoded_by[HR_DECODERS];
  int32_t decode_threads;
  int32_t read_threads; /* running now; 0 while reads are made by the decode threads */
} hr_stats;

typedef struct hr_pool hr_pool;
typedef struct hr_batch hr_batch;

HR_API int32_t hr_abi_version(void);
/* JSON: version, compiler, and the versions of the libraries that decode. Static. */
HR_API const char* hr_build_info(void);
/* What went wrong last in this thread; never NULL. Valid until this thread's next failure. */
HR_API const char* hr_last_error(void);
/* A sentence for an hr_code; never NULL. */
HR_API const char* hr_describe(int32_t code);
/* "read", "parse", …; NULL past the last. */
HR_API const char* hr_stage_name(int32_t stage);
/* Decoders, format by format, best first: those of JPEG, then "libdeflate" and "libwebp", where the
 * library was built with them. NULL past the last. */
HR_API const char* hr_decoder_name(int32_t decoder);
/* Instruction sets: name (NULL past the last), availability here, the one in use; force one (-1:
 * the best again). */
HR_API const char* hr_simd_name(int32_t simd);
HR_API int32_t hr_simd_available(int32_t simd);
HR_API int32_t hr_simd_active(void);
HR_API int32_t hr_simd_force(int32_t simd);

/* decode_threads 0: the thread that waits does the work. read_threads: at most this many further
 * threads, started once reads are measured to block; 0: never. */
HR_API int32_t hr_pool_create(int32_t decode_threads, int32_t read_threads, hr_pool** pool);
/* Changes the numbers of threads while batches are made; those beyond end once they are done with
 * their sample. Not for a pool that was made with decode_threads 0. */
HR_API int32_t hr_pool_use(hr_pool* pool, int32_t decode_threads, int32_t read_threads);
/* Cancels what is left and ends the threads. One that is stuck in a read for more than 5 s is left
 * behind. */
HR_API void hr_pool_destroy(hr_pool* pool);
HR_API int32_t hr_pool_stats(hr_pool* pool, hr_stats* stats);

/* Batches are worked on in the order of submission, several at a time. */
HR_API int32_t hr_batch_submit(hr_pool* pool, const hr_request* request, hr_batch** batch);
/* HR_OK: every sample has its status. HR_TIMEOUT: not yet; timeout_ms 0 only asks. */
HR_API int32_t hr_batch_wait(hr_batch* batch, int32_t timeout_ms);
/* Samples not begun get HR_CANCELLED; those begun go on, so wait before freeing. */
HR_API int32_t hr_batch_cancel(hr_batch* batch);
/* Only after hr_batch_wait() said HR_OK, or in a forked child. */
HR_API void hr_batch_free(hr_batch* batch);

/* The id of the op of this name; -1: there is none. hr_op_name: NULL past the last. */
HR_API int32_t hr_op_id(const char* name);
HR_API const char* hr_op_name(int32_t id);

/* What is drawn for an image of width × height, and the size of the result, which the pipeline's
 * own needn't be. draws: [op_count]; size: width, height. HR_UNSUPPORTED: torchvision raises an
 * error for such an image. */
HR_API int32_t hr_draw_ops(const hr_pipeline* pipeline, uint64_t seed, uint64_t epoch,
                           int64_t index, int64_t occurrence, int32_t width, int32_t height,
                           hr_draw* draws, int32_t* size);

/* The pipeline on an image that is decoded already: rgb is [height][width][3], the output one
 * sample as in a batch. draws: [op_count], as hr_draw_ops() gives them; other finite numbers of
 * magnitude up to 2^30 are safe, and may be HR_UNSUPPORTED. */
HR_API int32_t hr_apply_ops(const hr_pipeline* pipeline, const hr_draw* draws, const uint8_t* rgb,
                            int32_t width, int32_t height, void* output);

typedef struct hr_image_facts {
  uint32_t checksum; /* CRC-32 of the file, as zlib's */
  int32_t width;     /* in pixels, from the header */
  int32_t height;
  uint64_t entries_end;
} hr_image_facts;

/* Single operations, for tests and tools. */
/* What the index of a pack holds of image files, into facts[count] and entries[capacity], where the
 * packed entry points of file i begin at those of file i - 1's end (0 for the first) and end at
 * facts[i].entries_end. A file that native code doesn't read, or that is damaged, has width and
 * height 0 and no entry points; a JPEG that needs none, or that the own decoder doesn't take, has
 * none.
 * every: MCUs from one entry point to the next; 0: the fewest that keep them within 2 % of the
 * file. HR_TOO_LARGE: the entry points need more than `capacity` bytes. */
HR_API int32_t hr_index_images(const uint8_t* const* files, const uint64_t* sizes, int64_t count,
                               int32_t every, hr_image_facts* facts, uint8_t* entries,
                               uint64_t capacity);
/* The same image, coefficient for coefficient, as a baseline JPEG in out[capacity], *out_size
 * bytes. restart_interval: MCUs from one restart marker to the next, at most 65535; 0: no markers;
 * -1: the largest number up to 4 that divides the MCUs of a row. optimize: Huffman tables made for
 * this file, not the standard ones. copy_markers 0: of APPn and COM segments only JFIF and Adobe
 * stay. What follows the image's end is dropped. HR_UNSUPPORTED, HR_CORRUPT: libjpeg can't read
 * this file, or would only with a warning. HR_TOO_LARGE: capacity is less than *out_size. */
HR_API int32_t hr_jpeg_transcode(const uint8_t* data, uint64_t size, int32_t restart_interval,
                                 int32_t optimize, int32_t copy_markers, uint8_t* out,
                                 uint64_t capacity, uint64_t* out_size);
/* RGBX pixels of the rectangle, rows 4 × w bytes apart, by one decoder. `entries` may be NULL.
 * `data` and `entries` must be readable for 256 bytes past their ends. */
HR_API int32_t hr_image_decode(int32_t decoder, const uint8_t* data, uint64_t size,
                               const uint8_t* entries, uint64_t entries_size, int32_t x, int32_t y,
                               int32_t w, int32_t h, uint8_t* rgbx);

/* One image of those that hr_image_render() makes of a file: the crop is resized to width × height,
 * of which the window is kept and mirrored. Rectangles are x, y, width, height. */
typedef struct hr_render_job {
  int32_t crop[4];
  int32_t width; /* of the resized crop, in pixels; the crop's own: nothing is resized */
  int32_t height;
  int32_t filter; /* a value of PIL.Image.Resampling, 0 to 5 */
  int32_t window[4];
  int32_t flip_x;                /* 1: columns right to left */
  int32_t flip_y;                /* 1: rows bottom to top */
  int32_t pillow_vertical_first; /* as in hr_pipeline */
  uint32_t decoders;             /* as in hr_pipeline */
  int32_t code;                  /* set when it is rendered: HR_OK, or why there is no output */
  int32_t frame[2];   /* height and width of a larger output, whose upper left corner the image is;
                       * the rest becomes 0. 0: the output is the image */
  int32_t patches[4]; /* the edge of the squares that the image is cut into, if not 0: one after
                       * another, in blocks of patches[1] × patches[1] of them, and each plane
                       * patches[2] times. The last isn't used */
  const hr_pipeline* pipeline; /* what is done to the window; it must not be NULL */
  const hr_draw* draws;        /* [pipeline->op_count], as for hr_apply_ops() */
  void* output;                /* one sample of the pipeline, its frame or its patches */
} hr_render_job;

/* size[2]: width and height in pixels, from the header of an image file that native code reads. */
HR_API int32_t hr_image_size(const uint8_t* data, uint64_t bytes, int32_t* size);

/* HR_OK: Pillow is certain to decode all of this file without an error. Takes some microseconds for
 * a JPEG, and far less than decoding for any format. */
HR_API int32_t hr_image_check(const uint8_t* data, uint64_t size);

/* A PNG file with its image data inflated: out[capacity], *out_size bytes. Functions that are given
 * it need HR_INFLATED. HR_OK: all of it can be decoded for certain. HR_TOO_LARGE: *out_size bytes
 * may be needed. HR_UNSUPPORTED, HR_CORRUPT: native code doesn't decode it. */
HR_API int32_t hr_png_inflate(const uint8_t* data, uint64_t size, uint8_t* out, uint64_t capacity,
                              uint64_t* out_size);

/* Makes the images of `jobs`, each with a code of its own; `upright` of their pipelines is ignored.
 * Where together they need more than the part of the image that holds all of them, that part is
 * decoded once. Buffers are kept by thread. HR_INVALID_ARGUMENT: one of them is wrong, or
 * its crop leaves the image, and none was made. HR_UNSUPPORTED, HR_CORRUPT: none of the decoders
 * takes this file. */
HR_API int32_t hr_image_render(const uint8_t* data, uint64_t size, hr_render_job* jobs,
                               int32_t count);

/* Bytes of memory for all pixels of an image, for the next two; 0: no image is of that size. */
HR_API uint64_t hr_pixels_size(int32_t width, int32_t height);

/* Decodes all of a file of width × height into memory that hr_pixels_render() reads. `decoders`: as
 * in hr_pipeline. HR_UNSUPPORTED, HR_CORRUPT: none of them takes this file. */
HR_API int32_t hr_pixels_decode(const uint8_t* data, uint64_t size, uint32_t decoders,
                                uint8_t* pixels, int32_t width, int32_t height);

/* As hr_image_render(), of an image that hr_pixels_decode() gave. The pixels are only read: several
 * threads may call it on the same ones. */
HR_API int32_t hr_pixels_render(const uint8_t* pixels, int32_t width, int32_t height,
                                hr_render_job* jobs, int32_t count);

/* Deferred memory: bytes without access rights until something touches them, in whatever thread;
 * then they are made, and are ordinary memory from then on, private to each process after a fork.
 * A system call that reads untouched memory fails with EFAULT. */

/* Writes the bytes of a piece of deferred memory. It runs in a thread of the library's while the
 * one that touched the memory waits, and must neither touch deferred memory nor need a lock that
 * code may hold which touches it (Python's, for one). Other than HR_OK, or a fault of its own: the
 * process ends, as with a fault of the thread that touched the memory. */
typedef int32_t (*hr_fill)(void* context, uint8_t* out, uint64_t size);

typedef struct hr_deferred_counts {
  int64_t live;   /* pieces that are taken, and were not given back */
  int64_t faults; /* touches that had to wait; several threads may touch the same piece */
  int64_t fills;
  int64_t filled_nbytes;
} hr_deferred_counts;

/* To be called before the others. HR_UNSUPPORTED: there can be no deferred memory here, and
 * hr_last_error() says why. From now on SIGSEGV has a handler, which passes on what isn't its own;
 * every call puts it before others that were installed since. */
HR_API int32_t hr_deferred_start(void);
/* Memory for `size` bytes, aligned to 64; NULL: none is left. What `context` points to must live
 * until it is given back. If another handler of SIGSEGV was installed, ours goes before it. */
HR_API void* hr_deferred_take(uint64_t size, hr_fill fill, void* context);
/* 1: untouched, 2: a thread waits for its contents, 3: filled; 0: this is no deferred memory. */
HR_API int32_t hr_deferred_state(const void* memory);
/* The context of untouched memory, of which `memory` is any byte; else NULL. */
HR_API void* hr_deferred_context(const void* memory);
HR_API void hr_deferred_give_back(void* memory);
HR_API void hr_deferred_count(hr_deferred_counts* counts);

/* What hr_fill_image() makes an image of. */
typedef struct hr_image_fill {
  const uint8_t* data;   /* the file, which hr_image_check() has approved */
  uint64_t size;         /* in bytes */
  const uint8_t* pixels; /* what hr_pixels_decode() gave of it; NULL: it is decoded */
  int32_t width;         /* of the whole image */
  int32_t height;
  hr_render_job job; /* its output is ignored */
} hr_image_fill;

/* HR_OK: hr_fill_image() can make this image. */
HR_API int32_t hr_image_fill_check(const hr_image_fill* image);
/* An hr_fill: the image of a hr_image_fill, the context. Where the data of a JPEG are damaged, it
 * is decoded as Pillow does, which makes do with what there is. */
HR_API int32_t hr_fill_image(void* context, uint8_t* out, uint64_t size);

/* Makes images[i] at outputs[i] as hr_fill_image() does, in the layout layouts[i], or its own if
 * that is -1. Images of the same file are made together. If a job has no pipeline, its data are
 * copied. */
HR_API int32_t hr_images_render(const hr_image_fill* const* images, void* const* outputs,
                                const int32_t* layouts, int32_t count);

/* Images in one piece of memory. */
typedef struct hr_image_list {
  const hr_image_fill* const* images;
  const uint64_t* offsets; /* of each, in bytes */
  int32_t count;
  int32_t layout; /* of all of them, or -1 for their own */
} hr_image_list;

/* An hr_fill: the images of a hr_image_list, the context. */
HR_API int32_t hr_fill_images(void* context, uint8_t* out, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif
