/* JPEG in memory, on libjpeg-turbo: crop-first decoding. No Python here. */
#ifndef WELLFED_JPEGCODEC_H
#define WELLFED_JPEGCODEC_H

#include <stddef.h>
#include <stdint.h>

#include "resample.h"
#include "status.h"

typedef struct wf_decoder wf_decoder; /* reusable; one thread at a time */

wf_decoder *wf_decoder_new(wf_kernels kernels);
void wf_decoder_free(wf_decoder *decoder);
/* What libjpeg said about the last failure; empty when there was none. */
const char *wf_decoder_message(const wf_decoder *decoder);

/* Decode the crop `box` (x, y, width, height, in the frame that EXIF `orientation` shows), resize it, flip it, and
   write out_width * out_height * 3 bytes, row by row, R G B. dct_scaling: let libjpeg halve, quarter or eighth the
   picture while it decodes where the crop stays at least as large as the target. */
int wf_decode(wf_decoder *decoder, const uint8_t *data, size_t length, const int32_t box[4], int orientation, int flip,
              int out_width, int out_height, int dct_scaling, uint8_t *out);

#endif
