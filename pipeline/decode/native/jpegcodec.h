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

/* What of a picture is wanted, and how.
   box: x, y, width, height in the frame that EXIF `orientation` shows; ignored where `whole`.
   flip: mirror left and right after the crop.
   width, height: of the output.
   headroom: 0, or let libjpeg halve, quarter or eighth the picture while it decodes, where the crop stays at least this
   many times as large as the output; not where it warns of damage.
   whole: all of the picture, read on to the end of the file, so that all damage is found. */
typedef struct {
    int32_t box[4];
    int orientation, flip, width, height, headroom, whole;
} wf_view;

/* Decode a view to width * height * 3 bytes, row by row, R G B. */
int wf_decode(wf_decoder *decoder, const uint8_t *data, size_t length, const wf_view *view, uint8_t *out);

/* What libjpeg warned about in the last picture without giving up. */
long wf_decoder_warnings(const wf_decoder *decoder);

#endif
