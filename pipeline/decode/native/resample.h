/* Antialiased triangle ("bilinear") resampling in two 8-bit passes, as Pillow's Image.resize does it. */
#ifndef WELLFED_RESAMPLE_H
#define WELLFED_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

#define WF_PRECISION 14 /* coefficients are fixed point; 1.0 is 1 << 14, so that it fits an int16 */

/* Filter taps of one axis: output i reads input first[i] .. first[i] + width - 1 with weights[i * width ...].
   Every output has the same padded width (a multiple of 4); weights past its own taps are zero. */
typedef struct {
    int outputs, width;
    int *first;
    int *count; /* taps before padding */
    int16_t *weights;
    size_t capacity_outputs, capacity_weights;
} wf_taps;

/* Taps for resizing input interval [start, start + length) of samples, limited to [low, high), to `outputs` samples.
   Returns 0, or -1 when memory is short. reversed: output i gets what output outputs - 1 - i would. */
int wf_taps_make(wf_taps *taps, double start, double length, int low, int high, int outputs, int reversed);
void wf_taps_free(wf_taps *taps);

/* One row of 4-byte pixels to `taps->outputs` 3-byte pixels. `row` is readable 16 bytes past its last pixel and `out`
   writable 4 bytes past its last. */
typedef void (*wf_horizontal)(const wf_taps *taps, const uint8_t *row, uint8_t *out);
/* `count` rows of `bytes` bytes, weighted, to one. */
typedef void (*wf_vertical)(const uint8_t *const *rows, const int16_t *weights, int count, uint8_t *out, size_t bytes);

typedef struct {
    wf_horizontal horizontal;
    wf_vertical vertical;
    const char *name;
} wf_kernels;

/* The fastest kernels this processor runs; all give equal results. */
wf_kernels wf_kernels_choose(void);
wf_kernels wf_kernels_portable(void);

#endif
