/* jpegheader.py in C, line by line: the two are held to each other, and both to Pillow, by test_jpegheader.py. */
#include "jpegheader.h"

#include <string.h>

#define MOST_PIXELS 50000000
#define PROFILE_HEADER 128

static size_t big16(const uint8_t *at) { return (size_t)at[0] << 8 | at[1]; }

static size_t big32(const uint8_t *at) { return big16(at) << 16 | big16(at + 2); }

static int starts(const uint8_t *data, size_t length, const char *words, size_t size) {
    return length >= size && !memcmp(data, words, size);
}

static int are_tables(const uint8_t *data, size_t length) {
    size_t place = 0;
    while (place < length) place += data[place] < 16 ? 65 : 129;
    return place == length;
}

/* One ICC profile in one piece, as long as it says. */
static int is_whole_profile(const uint8_t *data, size_t length) {
    if (!starts(data, length, "ICC_PROFILE\0\1\1", 14)) return 0;
    data += 14;
    length -= 14;
    if (length <= PROFILE_HEADER || memcmp(data + 36, "acsp", 4)) return 0;
    size_t stated = big32(data);
    return stated > PROFILE_HEADER && stated <= length;
}

/* Photoshop's image resources, each within the segment. */
static int are_resources(const uint8_t *data, size_t length) {
    size_t place = 14;
    if (!starts(data, length, "Photoshop 3.0", 14)) return 0;
    while (length - place >= 4 && !memcmp(data + place, "8BIM", 4)) {
        place += 6;
        if (place >= length) return 0;
        place += 1 + (size_t)data[place];
        place += place & 1;
        if (place + 4 > length) return 0;
        size_t size = big32(data + place);
        place += 4;
        if (size > length - place) return 0;
        place += size;
        if (place < length) place += place & 1;
    }
    return 1;
}

int wf_plain_jpeg(const uint8_t *data, size_t length, wf_plain *plain) {
    int found = 0;
    size_t place = 2;
    if (!starts(data, length, "\xff\xd8\xff", 3)) return 0;
    while (place + 4 <= length) {
        if (data[place] != 0xFF) return 0;
        int marker = data[place + 1];
        size_t size = big16(data + place + 2);
        const uint8_t *start = data + place + 4;
        if (size < 2 || size > length - place - 2) return 0;
        place += 2 + size;
        size -= 2; /* of what follows the length */
        switch (marker) {
            case 0xC4: /* Huffman tables, restart interval, comment: Pillow reads over them */
            case 0xDD:
            case 0xFE: break;
            case 0xDB:
                if (!are_tables(start, size)) return 0;
                break;
            case 0xDA: return found;
            case 0xC0:
            case 0xC1:
            case 0xC2:
                if (found || size < 6 || start[0] != 8) return 0;
                plain->height = (int)big16(start + 1);
                plain->width = (int)big16(start + 3);
                plain->layers = start[5];
                if ((plain->layers != 1 && plain->layers != 3) || size != 6 + 3 * (size_t)plain->layers) return 0;
                int64_t pixels = (int64_t)plain->width * plain->height;
                if (pixels <= 0 || pixels >= MOST_PIXELS) return 0;
                found = 1;
                break;
            case 0xE0:
                if (size < 12 || memcmp(start, "JFIF", 4)) return 0;
                break;
            case 0xE2:
                if (!is_whole_profile(start, size)) return 0;
                break;
            case 0xED:
                if (!are_resources(start, size)) return 0;
                break;
            case 0xEE:
                if (size < 12 || memcmp(start, "Adobe", 5)) return 0;
                break;
            default: return 0;
        }
    }
    return 0;
}

/* An end marker, looked for from the end, where it is. */
static int has_end(const uint8_t *data, size_t length, size_t from) {
    for (size_t place = length; place >= from + 2; place--)
        if (data[place - 2] == 0xFF && data[place - 1] == 0xD9) return 1;
    return 0;
}

int wf_ordinary_jpeg(const uint8_t *data, size_t length, int64_t width, int64_t height) {
    int layers = 0, stored_as_rgb = 0;
    size_t place = 2;
    if (!starts(data, length, "\xff\xd8", 2)) return 0;
    while (place + 4 <= length) {
        if (data[place] != 0xFF) return 0;
        int marker = data[place + 1];
        if (marker == 0xFF) {
            place++;
            continue;
        }
        if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) {
            place += 2;
            continue;
        }
        size_t size = big16(data + place + 2), start = place + 4;
        place += 2 + size;
        switch (marker) {
            case 0xDA: return layers > 0 && !(layers == 3 && stored_as_rgb) && has_end(data, length, place);
            case 0xC0:
            case 0xC1:
            case 0xC2:
                if (layers || start + 9 > length || data[start] != 8) return 0;
                layers = data[start + 5];
                if (layers != 1 && layers != 3) return 0;
                if (layers == 1 && data[start + 7] != 0x11) return 0;
                if ((int64_t)big16(data + start + 3) != width || (int64_t)big16(data + start + 1) != height) return 0;
                if (start + 13 <= length && data[start + 6] == 'R' && data[start + 9] == 'G' && data[start + 12] == 'B') stored_as_rgb = 1;
                break;
            case 0xEE:
                if (size < 2) return 0;
                if (size >= 14 && start + 12 <= length && !memcmp(data + start, "Adobe", 5)) stored_as_rgb = data[start + 11] == 0;
                break;
            default:
                /* 0xC4, 0xC8 and 0xCC are tables and a reserved marker; the other frames are not for every decoder. */
                if ((marker >= 0xC3 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) || size < 2) return 0;
        }
    }
    return 0;
}
