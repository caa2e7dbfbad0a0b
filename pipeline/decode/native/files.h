/* Bytes of open files. */
#ifndef WELLFED_FILES_H
#define WELLFED_FILES_H

#include <stddef.h>
#include <stdint.h>

/* Read `size` bytes from `offset` on; bytes that were read, fewer where the file ends or cannot be read. */
size_t wf_read(int descriptor, int64_t offset, uint8_t *to, size_t size);

#endif
