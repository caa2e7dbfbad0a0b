/* Whether a JPEG decodes, all of it. No Python here. */
#ifndef WELLFED_JPEGCHECK_H
#define WELLFED_JPEGCHECK_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* Decode every coefficient of every scan and throw the pixels away. *warnings counts what libjpeg warned about without giving
   up; an early end of the data is WF_CORRUPT. `message` gets libjpeg's words, empty where there are none. */
int wf_check(const uint8_t *data, size_t length, long *warnings, char message[WF_MESSAGE]);

#endif
