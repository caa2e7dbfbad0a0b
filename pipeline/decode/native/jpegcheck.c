#include "jpegcheck.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "jpegerror.h"

#define MOST_ROWS (MAX_SAMP_FACTOR * DCTSIZE) /* of one component in one row of MCUs */

/* On the heap: what setjmp's second return reads must not live in registers. */
typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_progress_mgr progress;
    wf_errors errors;
    uint8_t *row;
    JSAMPROW rows[MAX_COMPS_IN_SCAN][MOST_ROWS];
    JSAMPARRAY planes[MAX_COMPS_IN_SCAN];
} checker;

/* Every row of a component goes to the same memory: the check wants the decoder's word, not the pixels. */
static int one_row(checker *c) {
    size_t widest = 0;
    for (int i = 0; i < c->jpeg.num_components; i++) {
        const jpeg_component_info *component = &c->jpeg.comp_info[i];
        size_t blocks = (size_t)component->width_in_blocks + MAX_SAMP_FACTOR;
        if (blocks * DCTSIZE > widest) widest = blocks * DCTSIZE;
    }
    c->row = malloc(widest);
    if (!c->row) return -1;
    for (int i = 0; i < c->jpeg.num_components; i++) {
        for (int y = 0; y < MOST_ROWS; y++) c->rows[i][y] = c->row;
        c->planes[i] = c->rows[i];
    }
    return 0;
}

/* Every scan and every coefficient. What follows on them, the inverse transform, upsampling and colour conversion, cannot
   fail: at an eighth of the size the transform takes next to nothing, and the others are left out. */
static int check(checker *c, const uint8_t *data, size_t length) {
    struct jpeg_decompress_struct *j = &c->jpeg;
    jpeg_mem_src(j, data, (unsigned long)length);
    jpeg_read_header(j, TRUE);
    if (j->num_components > MAX_COMPS_IN_SCAN || (uint64_t)j->image_width * j->image_height > WF_MAX_PIXELS) return WF_UNSUPPORTED;
    j->raw_data_out = TRUE;
    j->scale_num = 1;
    j->scale_denom = DCTSIZE;
    jpeg_start_decompress(j);
    if (one_row(c)) return WF_MEMORY;
    JDIMENSION lines = (JDIMENSION)j->max_v_samp_factor * DCTSIZE;
    while (j->output_scanline < j->output_height) jpeg_read_raw_data(j, c->planes, lines);
    jpeg_finish_decompress(j);
    return c->errors.data_ended ? WF_CORRUPT : WF_OK;
}

int wf_check(const uint8_t *data, size_t length, long *warnings, char message[WF_MESSAGE]) {
    checker *c = calloc(1, sizeof *c);
    if (!c) return WF_MEMORY;
    int status;
    wf_errors_init(&c->errors);
    c->jpeg.err = &c->errors.base;
    if (setjmp(c->errors.escape)) {
        status = c->errors.no_memory ? WF_MEMORY : WF_CORRUPT;
    } else {
        jpeg_create_decompress(&c->jpeg);
        c->progress.progress_monitor = wf_limit_scans;
        c->jpeg.progress = &c->progress;
        status = check(c, data, length);
    }
    *warnings = c->errors.base.num_warnings;
    snprintf(message, WF_MESSAGE, "%s", c->errors.message);
    jpeg_destroy_decompress(&c->jpeg); /* safe in every state, even when creating it failed */
    free(c->row);
    free(c);
    return status;
}
