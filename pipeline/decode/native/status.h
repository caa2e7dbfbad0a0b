/* What became of one picture. */
#ifndef WELLFED_STATUS_H
#define WELLFED_STATUS_H

#define WF_MESSAGE 200 /* bytes of a message, with its final zero */

enum {
    WF_OK = 0,
    WF_UNSUPPORTED = 1, /* not a JPEG this path decodes (CMYK, YCCK, 12-bit, lossless): the reference path takes it */
    WF_CORRUPT = 2,     /* libjpeg gave up, or data ended before the picture did */
    WF_MEMORY = 3,
    WF_BAD_BOX = 4,     /* the crop box does not lie inside the picture */
    WF_UNREAD = 5       /* its file did not give all its bytes */
};

#endif
