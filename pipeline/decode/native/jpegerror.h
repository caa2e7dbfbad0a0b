/* libjpeg's errors and warnings, for callers that must survive any bytes. No Python here. */
#ifndef WELLFED_JPEGERROR_H
#define WELLFED_JPEGERROR_H

#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>

#include <jpeglib.h>

#define WF_MAX_PIXELS 178956970 /* Pillow's limit for a decompression bomb; larger pictures are the reference path's to judge */
#define WF_MAX_SCANS 500 /* a file with more is made to waste time (libjpeg-turbo's own advice for untrusted input) */

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf escape; /* where an error goes: set it before each call into libjpeg that may fail */
    int data_ended; /* data ended before the picture did */
    int no_memory;
    char message[JMSG_LENGTH_MAX]; /* of the error, or of the early end */
} wf_errors;

void wf_errors_init(wf_errors *errors);
/* Forget what the last picture had. */
void wf_errors_reset(wf_errors *errors);
/* Progress monitor for a j_decompress_ptr whose `err` is a wf_errors: more than WF_MAX_SCANS scans are an error. */
void wf_limit_scans(j_common_ptr info);

#endif
