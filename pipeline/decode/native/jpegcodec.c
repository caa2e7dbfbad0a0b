#include "jpegcodec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jpegerror.h"

/* Of a row's address, modulo 32. To rows at multiples of 16 or 32 libjpeg-turbo writes past the caches, and whoever reads
   them next waits for memory. */
#define ROW_OFFSET 4

/* Above it the taps' fixed point, 1 / 16384, would be seen in flat areas. */
#define MAX_REDUCTION 64

struct wf_decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_progress_mgr progress;
    wf_errors errors;
    wf_kernels kernels;
    wf_taps across, down;
    uint8_t *row_memory, *ring;
    size_t row_capacity, ring_capacity;
    const uint8_t **window;
    size_t window_capacity;
    uint8_t *turned; /* size * size * 3, for orientations that swap axes */
    size_t turned_capacity;
};

wf_decoder *wf_decoder_new(wf_kernels kernels) {
    wf_decoder *const d = calloc(1, sizeof *d);
    if (!d) return NULL;
    wf_errors_init(&d->errors);
    d->jpeg.err = &d->errors.base;
    if (setjmp(d->errors.escape)) {
        jpeg_destroy_decompress(&d->jpeg);
        free(d);
        return NULL;
    }
    jpeg_create_decompress(&d->jpeg);
    d->progress.progress_monitor = wf_limit_scans;
    d->jpeg.progress = &d->progress;
    d->kernels = kernels;
    return d;
}

void wf_decoder_free(wf_decoder *d) {
    if (!d) return;
    jpeg_destroy_decompress(&d->jpeg);
    wf_taps_free(&d->across);
    wf_taps_free(&d->down);
    free(d->row_memory), free(d->ring), free(d->window), free(d->turned);
    free(d);
}

const char *wf_decoder_message(const wf_decoder *d) { return d->errors.message; }

long wf_decoder_warnings(const wf_decoder *d) { return d->errors.base.num_warnings; }

static int reserve(void *pointer, size_t *capacity, size_t need) {
    void **p = pointer;
    if (*capacity >= need) return 0;
    free(*p);
    *p = malloc(need);
    *capacity = *p ? need : 0;
    return *p ? 0 : -1;
}

/* Header of a picture that this path can decode to R G B X. Like all below, it runs under wf_decode's setjmp. */
static int begin(wf_decoder *d, const uint8_t *data, size_t length) {
    struct jpeg_decompress_struct *j = &d->jpeg;
    wf_errors_reset(&d->errors);
    jpeg_mem_src(j, data, length);
    jpeg_read_header(j, TRUE);
    if (j->num_components != 1 && j->num_components != 3) return WF_UNSUPPORTED;
    if ((uint64_t)j->image_width * j->image_height > WF_MAX_PIXELS) return WF_UNSUPPORTED;
    j->out_color_space = JCS_EXT_RGBX;
    j->dct_method = JDCT_ISLOW; /* what Pillow, torchvision and DALI's default use: bit-equal pixels */
    j->do_fancy_upsampling = TRUE;
    return WF_OK;
}

/* A box in the frame that the orientation shows, in the frame as stored; checked before any number overflows. */
static int unrotate(int orientation, int stored_width, int stored_height, const int32_t in[4], int32_t out[4]) {
    int x = in[0], y = in[1], w = in[2], h = in[3];
    int shown_width = orientation >= 5 ? stored_height : stored_width, shown_height = orientation >= 5 ? stored_width : stored_height;
    if (x < 0 || y < 0 || w < 1 || h < 1 || (int64_t)x + w > shown_width || (int64_t)y + h > shown_height) return WF_BAD_BOX;
    int mx = shown_width - x - w, my = shown_height - y - h;
    switch (orientation) {
    case 2: out[0] = mx, out[1] = y, out[2] = w, out[3] = h; break;
    case 3: out[0] = mx, out[1] = my, out[2] = w, out[3] = h; break;
    case 4: out[0] = x, out[1] = my, out[2] = w, out[3] = h; break;
    case 5: out[0] = y, out[1] = x, out[2] = h, out[3] = w; break;
    case 6: out[0] = y, out[1] = mx, out[2] = h, out[3] = w; break;
    case 7: out[0] = my, out[1] = mx, out[2] = h, out[3] = w; break;
    case 8: out[0] = my, out[1] = x, out[2] = h, out[3] = w; break;
    default: out[0] = x, out[1] = y, out[2] = w, out[3] = h;
    }
    return WF_OK;
}

static void transpose(const uint8_t *in, uint8_t *out, int width, int height) {
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) memcpy(out + ((size_t)x * height + y) * 3, in + ((size_t)y * width + x) * 3, 3);
}

static int run(wf_decoder *d, const uint8_t *data, size_t length, const wf_view *view, uint8_t *out) {
    struct jpeg_decompress_struct *j = &d->jpeg;
    int status = begin(d, data, length);
    if (status) return status;
    int orientation = view->orientation < 1 || view->orientation > 8 ? 1 : view->orientation;
    int swap = orientation >= 5;
    int cols = swap ? view->height : view->width, lines = swap ? view->width : view->height; /* of the output, as stored */
    int32_t b[4] = {0, 0, (int32_t)j->image_width, (int32_t)j->image_height};
    if (!view->whole) status = unrotate(orientation, (int)j->image_width, (int)j->image_height, view->box, b);
    if (status) return status;
    int scale = 1;
    int64_t least_width = 2 * (int64_t)view->headroom * cols, least_height = 2 * (int64_t)view->headroom * lines;
    while (view->headroom && scale < 8 && b[2] >= least_width * scale && b[3] >= least_height * scale) scale *= 2;
    if (view->whole && (b[2] / scale > (int64_t)MAX_REDUCTION * cols || b[3] / scale > (int64_t)MAX_REDUCTION * lines))
        return WF_UNSUPPORTED;
    j->scale_num = 1;
    j->scale_denom = (unsigned)scale;
    jpeg_start_decompress(j);

    int width = (int)j->output_width, height = (int)j->output_height;
    double x0 = (double)b[0] / scale, y0 = (double)b[1] / scale, w = (double)b[2] / scale, h = (double)b[3] / scale;
    int left = (int)floor(x0), right = (int)ceil(x0 + w), top = (int)floor(y0), bottom = (int)ceil(y0 + h);
    if (right > width) right = width;
    if (bottom > height) bottom = height;
    /* Fancy upsampling reads a neighbour on each side: one column more keeps the crop's edges bit-exact. */
    JDIMENSION offset = (JDIMENSION)(left > 0 ? left - 1 : 0);
    JDIMENSION columns = (JDIMENSION)((right < width ? right + 1 : width)) - offset;
    if (columns < (JDIMENSION)width) jpeg_crop_scanline(j, &offset, &columns);
    else offset = 0;

    /* The shown picture is the stored one, transposed for 5..8, then mirrored; the caller's flip mirrors it once more.
       Mirrors cost nothing: they reverse the taps of an axis. */
    static const uint8_t mirror_x[9] = {0, 0, 1, 1, 0, 0, 1, 1, 0}; /* of the shown picture, after transposing */
    static const uint8_t mirror_y[9] = {0, 0, 0, 1, 1, 0, 0, 1, 1};
    int shown_x = mirror_x[orientation] ^ (view->flip != 0), shown_y = mirror_y[orientation];
    int reverse_across = swap ? shown_y : shown_x, reverse_down = swap ? shown_x : shown_y;
    if (wf_taps_make(&d->across, x0 - offset, w, left - (int)offset, right - (int)offset, cols, reverse_across) ||
        wf_taps_spread(&d->across) || wf_taps_make(&d->down, y0, h, top, bottom, lines, 0) ||
        reserve(&d->row_memory, &d->row_capacity, (size_t)j->output_width * 4 + WF_PAST_ROW(&d->across) + 32 + ROW_OFFSET) ||
        reserve(&d->window, &d->window_capacity, (size_t)d->down.width * sizeof *d->window) ||
        (swap && reserve(&d->turned, &d->turned_capacity, (size_t)cols * lines * 3)))
        return WF_MEMORY;
    size_t line = (size_t)cols * 3, stride = (line + WF_PAST_OUT + 31) & ~(size_t)31;
    int slots = d->down.width;
    if (reserve(&d->ring, &d->ring_capacity, stride * (size_t)slots)) return WF_MEMORY;
    uint8_t *const row = d->row_memory + (32 - (uintptr_t)d->row_memory % 32) % 32 + ROW_OFFSET;
    memset(row + (size_t)j->output_width * 4, 0, WF_PAST_ROW(&d->across));
    uint8_t *target = swap ? d->turned : out;
    if (top) jpeg_skip_scanlines(j, (JDIMENSION)top);
    int done = 0;
    for (int y = top; y < bottom && done < lines; y++) {
        JSAMPROW rows[1] = {row};
        jpeg_read_scanlines(j, rows, 1);
        /* A row that no further output needs is not filtered. */
        if (y < d->down.first[done]) continue;
        d->kernels.horizontal(&d->across, row, d->ring + stride * (size_t)(y % slots));
        while (done < lines && d->down.first[done] + d->down.count[done] <= y + 1) {
            int first = d->down.first[done], count = d->down.count[done];
            for (int i = 0; i < count; i++) d->window[i] = d->ring + stride * (size_t)((first + i) % slots);
            int to = reverse_down ? lines - 1 - done : done;
            d->kernels.vertical(d->window, d->down.weights + (size_t)done * d->down.width, count, target + (size_t)to * line, line);
            done++;
        }
    }
    if (view->whole) {
        JSAMPROW rows[1] = {row};
        while (j->output_scanline < j->output_height) jpeg_read_scanlines(j, rows, 1);
        jpeg_finish_decompress(j);
    }
    if (d->errors.data_ended || done < lines) return WF_CORRUPT;
    if (swap) transpose(d->turned, out, cols, lines);
    return WF_OK;
}

int wf_decode(wf_decoder *d, const uint8_t *data, size_t length, const wf_view *view, uint8_t *out) {
    if (setjmp(d->errors.escape)) {
        jpeg_abort_decompress(&d->jpeg);
        return d->errors.no_memory ? WF_MEMORY : WF_CORRUPT;
    }
    int status = run(d, data, length, view, out);
    int reduced = d->jpeg.scale_denom > 1;
    jpeg_abort_decompress(&d->jpeg);
    /* Damaged coefficients lie out of range: a reduced decode clips them elsewhere, and shows another picture. */
    if (status == WF_OK && reduced && d->errors.base.num_warnings) {
        wf_view full = *view;
        full.headroom = 0;
        status = run(d, data, length, &full, out);
        jpeg_abort_decompress(&d->jpeg);
    }
    return status;
}
