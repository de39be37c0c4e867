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
#define HR_ABI_VERSION 7

#define HR_STAGES 5   /* read, parse, decode, resize, store */
#define HR_DECODERS 8 /* room for the decoders' table; unused entries are 0 */

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

typedef enum hr_step_kind {
  HR_RANDOM_RESIZED_CROP = 1,
  HR_RESIZE = 2,
  HR_RESIZE_SHORTER = 3,
  HR_CENTER_CROP = 4,
  HR_RANDOM_CROP = 5,
  HR_HORIZONTAL_FLIP = 6,
  HR_VERTICAL_FLIP = 7
} hr_step_kind;

typedef enum hr_padding_mode {
  HR_CONSTANT = 0,
  HR_EDGE = 1,
  HR_REFLECT = 2,
  HR_SYMMETRIC = 3
} hr_padding_mode;

/* One geometric step, with torchvision's meaning on a PIL image. Fields that a kind doesn't name
 * are ignored. */
typedef struct hr_step {
  int32_t kind;   /* hr_step_kind */
  int32_t height; /* of the result, in pixels; RESIZE_SHORTER: of the shorter edge */
  int32_t width;
  int32_t filter;        /* the resizing kinds: a value of PIL.Image.Resampling, 0 to 5 */
  int32_t max_size;      /* RESIZE_SHORTER: limit of the longer edge; 0: none */
  int32_t padding[4];    /* RANDOM_CROP: left, top, right, bottom */
  int32_t pad_if_needed; /* RANDOM_CROP */
  int32_t padding_mode;  /* RANDOM_CROP: hr_padding_mode */
  int32_t fill[3];       /* RANDOM_CROP: red, green, blue for HR_CONSTANT */
  float scale[2];        /* RANDOM_RESIZED_CROP: bounds of the area's share */
  float log_ratio[2];    /* RANDOM_RESIZED_CROP: bounds of log(width / height), as float32 like
                            torchvision's */
  double ratio[2];       /* RANDOM_RESIZED_CROP: bounds of width / height, for the fallback */
  double p;              /* flips: probability */
} hr_step;

/* What was drawn for one step, in pixels of that step's input: RANDOM_RESIZED_CROP top, left,
 * height, width; RANDOM_CROP top, left in the padded input; flips 1 or 0; zeros otherwise. */
typedef struct hr_draw {
  int32_t value[4];
} hr_draw;

/* What happens to every sample of a batch. */
typedef struct hr_pipeline {
  const hr_step* steps;
  int32_t step_count;
  int32_t height; /* of every output, in pixels */
  int32_t width;
  int32_t dtype;                 /* 0 uint8, 1 float16, 2 bfloat16, 3 float32 */
  int32_t layout;                /* 0 NCHW, 1 NHWC */
  int32_t pillow_vertical_first; /* 1: resize like Pillow >= 13, 0: like Pillow 12 */
  uint32_t decoders;             /* bit i: decoder i of hr_decoder_name() may be used */
  int32_t reserved;
  int64_t max_pixels; /* images with more are HR_TOO_LARGE; 0: no limit */
  const void* table;  /* [3][256] of dtype; NULL: the levels themselves (uint8 only) */
} hr_pipeline;

/* Where the bytes of sample i are. `paths`: all of the file whose zero-terminated path is at paths
 * + path_offsets[i]. `paths` and `begins`: the sizes[i] bytes from begins[i] on of the file whose
 * path is at paths + path_offsets[shards[i]]. `paths` NULL: the sizes[i] bytes at data[i], readable
 * for 256 bytes more. */
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
} hr_source;

typedef struct hr_status {
  int32_t code;      /* hr_code */
  int32_t sys_errno; /* HR_READ_FAILED: why */
  int32_t decoder;   /* which decoder gave the pixels; -1: none */
  int32_t width;     /* of the image, where its header could be read; else 0 */
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
/* JSON: version, compiler, flags, libjpeg. Static. */
HR_API const char* hr_build_info(void);
/* What went wrong last in this thread; never NULL. Valid until this thread's next failure. */
HR_API const char* hr_last_error(void);
/* A sentence for an hr_code; never NULL. */
HR_API const char* hr_describe(int32_t code);
/* "read", "parse", …; NULL past the last. */
HR_API const char* hr_stage_name(int32_t stage);
/* Decoder variants in order of preference; NULL past the last. */
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

/* What would be drawn for an image of width × height. draws: [step_count]. */
HR_API int32_t hr_draw_steps(const hr_pipeline* pipeline, uint64_t seed, uint64_t epoch,
                             int64_t index, int64_t occurrence, int32_t width, int32_t height,
                             hr_draw* draws);

/* Finished pictures as samples of the pipeline: of its height, width, dtype and layout, levels
 * replaced by its table; its steps are ignored. levels: [count][3][height][width]. */
HR_API int32_t hr_look_up(const hr_pipeline* pipeline, const uint8_t* levels, int64_t count,
                          void* output);

/* Single operations, for tests and tools. */
/* Entry points of a JPEG, packed, into out[capacity]; *out_size bytes, 0 where the file needs none.
 * every: MCUs from one to the next; 0: the fewest that keep them within 2 % of the file.
 * HR_UNSUPPORTED, HR_CORRUPT: the own decoder doesn't take this file. HR_TOO_LARGE: more than
 * `capacity` bytes. */
HR_API int32_t hr_jpeg_entry_points(const uint8_t* data, uint64_t size, int32_t every, uint8_t* out,
                                    uint64_t capacity, uint64_t* out_size);
/* The same picture, coefficient for coefficient, as a baseline JPEG in out[capacity], *out_size
 * bytes. restart_interval: MCUs from one restart marker to the next, at most 65535; 0: no markers;
 * -1: the largest number up to 4 that divides the MCUs of a row. optimize: Huffman tables made for
 * this file, not the standard ones. copy_markers 0: of APPn and COM segments only JFIF and Adobe
 * stay. What follows the image's end is dropped. HR_UNSUPPORTED, HR_CORRUPT: libjpeg can't read
 * this file, or would only with a warning. HR_TOO_LARGE: capacity is less than *out_size. */
HR_API int32_t hr_jpeg_transcode(const uint8_t* data, uint64_t size, int32_t restart_interval,
                                 int32_t optimize, int32_t copy_markers, uint8_t* out,
                                 uint64_t capacity, uint64_t* out_size);
/* From the header. */
HR_API int32_t hr_jpeg_size(const uint8_t* data, uint64_t size, int32_t* width, int32_t* height);
/* RGBX pixels of the rectangle, rows 4 × w bytes apart. `entries` may be NULL. `data` and `entries`
 * must be readable for 256 bytes past their ends. */
HR_API int32_t hr_jpeg_decode(int32_t decoder, const uint8_t* data, uint64_t size,
                              const uint8_t* entries, uint64_t entries_size, int32_t x, int32_t y,
                              int32_t w, int32_t h, uint8_t* rgbx);

/* Which pixels of a JPEG hr_jpeg_render() gives: the crop is resized to width × height, of which
 * the window is kept and mirrored. Rectangles are x, y, width, height. */
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
} hr_render_job;

/* HR_OK: libjpeg is certain to decode all of this file without an error. Takes some microseconds.
 */
HR_API int32_t hr_jpeg_check(const uint8_t* data, uint64_t size);

/* RGB pixels of the window, 3 bytes each, in rows without gaps. Buffers are kept by thread.
 * HR_UNSUPPORTED, HR_CORRUPT: none of the decoders takes this file. */
HR_API int32_t hr_jpeg_render(const uint8_t* data, uint64_t size, const hr_render_job* job,
                              uint8_t* rgb);

#ifdef __cplusplus
}
#endif
#endif
