/* Writing JPEGs: pixels encoded, and others' files rewritten without touching their coefficients. No Python here. */
#ifndef WELLFED_JPEGWRITE_H
#define WELLFED_JPEGWRITE_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* Rewrite a JPEG as one scan of sequential Huffman coding with optimised tables, by copying coefficients. Every marker
   segment before the picture's end is kept as it is and in its order; restart markers and what follows the end are not.
   WF_CORRUPT: it cannot be read, or ends early. WF_UNSUPPORTED: it can be read, and not be written in that way.
   *out is malloc'ed, for the caller to free, where the result is WF_OK. */
int wf_baseline(const uint8_t *data, size_t length, uint8_t **out, size_t *out_length, long *warnings, char message[WF_MESSAGE]);

/* A baseline JPEG of R G B pixels (4:2:0), or of their red where `grey`; width and height from 1 to 65500.
   *out is malloc'ed, for the caller to free, where the result is WF_OK. */
int wf_encode(const uint8_t *pixels, int width, int height, int grey, int quality, uint8_t **out, size_t *out_length,
              char message[WF_MESSAGE]);

#endif
