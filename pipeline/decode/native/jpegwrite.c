#include "jpegwrite.h"

#include <stdlib.h>
#include <string.h>

#include <jerror.h>

#include "jpegerror.h"

#define FIRST_BUFFER 4096

/* On the heap: what is read after setjmp's second return must not live in registers. */
typedef struct {
    struct jpeg_destination_mgr sink; /* first, so that libjpeg's pointer to it is one to all of this */
    struct jpeg_decompress_struct in;
    struct jpeg_compress_struct to;
    struct jpeg_progress_mgr progress;
    wf_errors errors;
    long read_warnings;
    int writing; /* an error from here on says nothing against the source */
    uint8_t *start, *line;
    size_t capacity;
} writer;

static void sink_begin(j_compress_ptr info) { (void)info; }
static void sink_end(j_compress_ptr info) { (void)info; }

/* libjpeg's own memory destination loses track of its buffer when an error escapes. */
static boolean sink_more(j_compress_ptr info) {
    writer *w = (writer *)info->dest;
    uint8_t *larger = w->capacity <= SIZE_MAX / 2 ? realloc(w->start, w->capacity * 2) : NULL;
    if (!larger) ERREXIT1(info, JERR_OUT_OF_MEMORY, 0);
    w->start = larger;
    w->sink.next_output_byte = larger + w->capacity;
    w->sink.free_in_buffer = w->capacity;
    w->capacity *= 2;
    return TRUE;
}

static writer *writer_new(size_t capacity) {
    writer *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->start = malloc(capacity);
    if (!w->start) {
        free(w);
        return NULL;
    }
    w->capacity = capacity;
    w->sink.next_output_byte = w->start;
    w->sink.free_in_buffer = capacity;
    w->sink.init_destination = sink_begin;
    w->sink.empty_output_buffer = sink_more;
    w->sink.term_destination = sink_end;
    wf_errors_init(&w->errors);
    w->in.err = w->to.err = &w->errors.base;
    return w;
}

/* Frees everything, and hands the buffer over where the result is WF_OK. */
static int writer_end(writer *w, int status, uint8_t **out, size_t *out_length, char message[WF_MESSAGE]) {
    snprintf(message, WF_MESSAGE, "%s", w->errors.message);
    jpeg_destroy_compress(&w->to); /* both are safe in every state, also before they were created */
    jpeg_destroy_decompress(&w->in);
    free(w->line);
    if (status == WF_OK) {
        *out = w->start;
        *out_length = w->capacity - w->sink.free_in_buffer;
    } else {
        free(w->start);
    }
    free(w);
    return status;
}

static int rewrite(writer *w, const uint8_t *data, size_t length) {
    jpeg_create_decompress(&w->in);
    jpeg_create_compress(&w->to);
    w->progress.progress_monitor = wf_limit_scans;
    w->in.progress = &w->progress;
    for (int marker = 0; marker < 16; marker++) jpeg_save_markers(&w->in, JPEG_APP0 + marker, 0xFFFF);
    jpeg_save_markers(&w->in, JPEG_COM, 0xFFFF);
    jpeg_mem_src(&w->in, data, (unsigned long)length);
    jpeg_read_header(&w->in, TRUE);
    if ((uint64_t)w->in.image_width * w->in.image_height > WF_MAX_PIXELS || w->in.num_components > MAX_COMPS_IN_SCAN)
        return WF_UNSUPPORTED;
    jvirt_barray_ptr *coefficients = jpeg_read_coefficients(&w->in);
    if (w->errors.data_ended) return WF_CORRUPT;
    w->read_warnings = w->errors.base.num_warnings; /* both share the count, and beginning to write sets it to 0 */
    w->errors.base.num_warnings = 0;
    w->writing = 1;
    jpeg_copy_critical_parameters(&w->in, &w->to);
    w->to.optimize_coding = TRUE;
    w->to.dest = &w->sink;
    /* The source's own JFIF and Adobe segments follow with the others: one that it lacks would change its colours. */
    w->to.write_JFIF_header = FALSE;
    w->to.write_Adobe_marker = FALSE;
    jpeg_write_coefficients(&w->to, coefficients);
    for (jpeg_saved_marker_ptr m = w->in.marker_list; m; m = m->next) jpeg_write_marker(&w->to, m->marker, m->data, m->data_length);
    jpeg_finish_compress(&w->to);
    jpeg_finish_decompress(&w->in);
    return WF_OK;
}

int wf_baseline(const uint8_t *data, size_t length, uint8_t **out, size_t *out_length, long *warnings, char message[WF_MESSAGE]) {
    writer *w = writer_new(length / 8 * 9 + FIRST_BUFFER);
    if (!w) return WF_MEMORY;
    int status;
    if (setjmp(w->errors.escape))
        status = w->errors.no_memory ? WF_MEMORY : w->writing ? WF_UNSUPPORTED : WF_CORRUPT;
    else
        status = rewrite(w, data, length);
    *warnings = w->read_warnings + w->errors.base.num_warnings;
    return writer_end(w, status, out, out_length, message);
}

static int encode(writer *w, const uint8_t *pixels, int width, int height, int grey, int quality) {
    struct jpeg_compress_struct *to = &w->to;
    jpeg_create_compress(to);
    to->dest = &w->sink;
    to->image_width = (JDIMENSION)width;
    to->image_height = (JDIMENSION)height;
    to->input_components = grey ? 1 : 3;
    to->in_color_space = grey ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(to);
    jpeg_set_quality(to, quality, TRUE);
    jpeg_start_compress(to, TRUE);
    for (int y = 0; y < height; y++) {
        const uint8_t *row = pixels + (size_t)y * (size_t)width * 3;
        JSAMPROW rows[1] = {grey ? w->line : (JSAMPROW)row};
        for (int x = 0; grey && x < width; x++) w->line[x] = row[3 * x];
        jpeg_write_scanlines(to, rows, 1);
    }
    jpeg_finish_compress(to);
    return WF_OK;
}

int wf_encode(const uint8_t *pixels, int width, int height, int grey, int quality, uint8_t **out, size_t *out_length,
              char message[WF_MESSAGE]) {
    writer *w = writer_new((size_t)width * (size_t)height / 2 + FIRST_BUFFER);
    if (!w) return WF_MEMORY;
    w->line = malloc((size_t)width);
    int status;
    if (!w->line)
        status = WF_MEMORY;
    else if (setjmp(w->errors.escape))
        status = w->errors.no_memory ? WF_MEMORY : WF_UNSUPPORTED;
    else
        status = encode(w, pixels, width, height, grey, quality);
    return writer_end(w, status, out, out_length, message);
}
