#define _FILE_OFFSET_BITS 64
#define _XOPEN_SOURCE 700

#include "files.h"

#include <errno.h>
#include <unistd.h>

size_t wf_read(int descriptor, int64_t offset, uint8_t *to, size_t size) {
    size_t have = 0;
    while (have < size) {
        ssize_t got = pread(descriptor, to + have, size - have, (off_t)(offset + (int64_t)have));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (size_t)got;
    }
    return have;
}
