#include "jpegerror.h"

#include <jerror.h>

static void on_error(j_common_ptr info) {
    wf_errors *errors = (wf_errors *)info->err;
    info->err->format_message(info, errors->message);
    errors->no_memory = info->err->msg_code == JERR_OUT_OF_MEMORY;
    longjmp(errors->escape, 1);
}

static void on_message(j_common_ptr info, int level) {
    wf_errors *errors = (wf_errors *)info->err;
    if (level >= 0) return; /* trace */
    info->err->num_warnings++;
    /* Data that ends early decodes to grey without an error: the one warning that means a lost picture. */
    if (info->err->msg_code == JWRN_JPEG_EOF) {
        errors->data_ended = 1;
        info->err->format_message(info, errors->message);
    }
}

void wf_limit_scans(j_common_ptr info) {
    wf_errors *errors = (wf_errors *)info->err;
    if (!info->is_decompressor || ((j_decompress_ptr)info)->input_scan_number <= WF_MAX_SCANS) return;
    snprintf(errors->message, sizeof errors->message, "more than %d scans", WF_MAX_SCANS);
    longjmp(errors->escape, 1);
}

void wf_errors_reset(wf_errors *errors) {
    errors->base.num_warnings = 0;
    errors->data_ended = 0;
    errors->no_memory = 0;
    errors->message[0] = 0;
}

void wf_errors_init(wf_errors *errors) {
    jpeg_std_error(&errors->base);
    errors->base.error_exit = on_error;
    errors->base.emit_message = on_message;
    wf_errors_reset(errors);
}
