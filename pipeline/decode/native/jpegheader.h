/* The header of an ordinary JPEG, without libjpeg. No Python here. */
#ifndef WELLFED_JPEGHEADER_H
#define WELLFED_JPEGHEADER_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int width, height, layers;
} wf_plain;

/* 1, and *plain filled, for what jpegheader.py's `plain_jpeg` answers; 0 for whatever else. */
int wf_plain_jpeg(const uint8_t *data, size_t length, wf_plain *plain);

/* Whether ordinary.py's `is_ordinary_in_python` says so. */
int wf_ordinary_jpeg(const uint8_t *data, size_t length, int64_t width, int64_t height);

#endif
