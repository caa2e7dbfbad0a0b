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
    int groups;      /* of four taps, in the output that has most; 0 before wf_taps_spread */
    int16_t *spread; /* see there */
    size_t capacity_outputs, capacity_weights, capacity_spread;
} wf_taps;

/* Taps for resizing input interval [start, start + length) of samples, limited to [low, high), to `outputs` samples.
   Returns 0, or -1 when memory is short. reversed: output i gets what output outputs - 1 - i would. */
int wf_taps_make(wf_taps *taps, double start, double length, int low, int high, int outputs, int reversed);
/* Also lay the weights out as multiply-adds of four-byte pixels take them, which pays over the rows of a picture: for
   every four outputs (those past the last have none), every group of four taps, and each of the outputs, 16 int16:
   weights 0 and 1 four times, then 2 and 3 four times. Returns 0, or -1 when memory is short. */
int wf_taps_spread(wf_taps *taps);
void wf_taps_free(wf_taps *taps);

#define WF_PAST_ROW(taps) (16 * (size_t)((taps)->width / 4)) /* bytes */
#define WF_PAST_OUT 16

/* One row of 4-byte pixels to `taps->outputs` 3-byte pixels, of taps that were spread. `row` is readable WF_PAST_ROW
   bytes past its last pixel and `out` writable WF_PAST_OUT bytes past its last. */
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
