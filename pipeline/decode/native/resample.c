#include "resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUND (1 << (WF_PRECISION - 1))

int wf_taps_make(wf_taps *taps, double start, double length, int low, int high, int outputs, int reversed) {
    double scale = length / outputs, support = scale > 1 ? scale : 1;
    int width = ((int)ceil(support) * 2 + 1 + 3) & ~3;
    size_t need = (size_t)outputs * (size_t)width, fours = ((size_t)outputs + 3) & ~(size_t)3;
    if (taps->capacity_outputs < fours) {
        free(taps->first);
        taps->first = malloc(2 * fours * sizeof(int));
        taps->capacity_outputs = taps->first ? fours : 0;
        if (!taps->first) return -1;
    }
    taps->count = taps->first + taps->capacity_outputs;
    if (taps->capacity_weights < need) {
        free(taps->weights);
        taps->weights = malloc(need * sizeof(int16_t));
        taps->capacity_weights = taps->weights ? need : 0;
        if (!taps->weights) return -1;
    }
    taps->outputs = outputs;
    taps->width = width;
    taps->groups = 0;
    double inverse = 1 / support;
    for (int o = 0; o < outputs; o++) {
        int to = reversed ? outputs - 1 - o : o;
        double centre = start + (o + .5) * scale, total = 0;
        int first = (int)floor(centre - support + .5), last = (int)floor(centre + support + .5);
        if (first < low) first = low;
        if (last > high) last = high;
        if (last - first > width) last = first + width;
        if (last <= first) { /* cannot happen for a box inside the image; keeps hostile input harmless */
            first = first < high ? first : high - 1;
            last = first + 1;
        }
        int16_t *w = taps->weights + (size_t)to * width;
        for (int i = first; i < last; i++) {
            double x = fabs((i + .5 - centre) * inverse);
            total += x < 1 ? 1 - x : 0;
        }
        double norm = total > 0 ? (1 << WF_PRECISION) / total : 0;
        for (int i = first; i < last; i++) {
            double x = fabs((i + .5 - centre) * inverse);
            w[i - first] = (int16_t)(total > 0 ? (x < 1 ? (1 - x) * norm + .5 : 0) : (i == first ? 1 << WF_PRECISION : 0));
        }
        memset(w + (last - first), 0, (size_t)(width - (last - first)) * sizeof *w);
        taps->first[to] = first;
        taps->count[to] = last - first;
    }
    return 0;
}

int wf_taps_spread(wf_taps *taps) {
    int most = 1, fours = (taps->outputs + 3) & ~3;
    for (int o = 0; o < taps->outputs; o++)
        if (taps->count[o] > most) most = taps->count[o];
    int groups = (most + 3) / 4;
    size_t need = (size_t)fours * (size_t)groups * 16;
    if (taps->capacity_spread < need) {
        free(taps->spread);
        taps->spread = aligned_alloc(32, need * sizeof(int16_t));
        taps->capacity_spread = taps->spread ? need : 0;
        if (!taps->spread) return -1;
    }
    taps->groups = groups;
    for (int o = taps->outputs; o < fours; o++) taps->first[o] = taps->first[taps->outputs - 1];
    int16_t *to = taps->spread;
    for (int four = 0; four < fours; four += 4)
        for (int group = 0; group < groups; group++)
            for (int o = four; o < four + 4; o++, to += 16) {
                const int16_t *w = taps->weights + (size_t)o * taps->width + 4 * group;
                for (int i = 0; i < 8; i++) {
                    to[i] = o < taps->outputs ? w[i & 1] : 0;
                    to[8 + i] = o < taps->outputs ? w[2 + (i & 1)] : 0;
                }
            }
    return 0;
}

void wf_taps_free(wf_taps *taps) {
    free(taps->first);
    free(taps->weights);
    free(taps->spread);
    memset(taps, 0, sizeof *taps);
}

static void horizontal_c(const wf_taps *taps, const uint8_t *row, uint8_t *out) {
    for (int x = 0; x < taps->outputs; x++) {
        const int16_t *w = taps->weights + (size_t)x * taps->width;
        const uint8_t *p = row + 4 * (size_t)taps->first[x];
        int r = ROUND, g = ROUND, b = ROUND;
        for (int i = 0; i < taps->count[x]; i++, p += 4) {
            r += w[i] * p[0];
            g += w[i] * p[1];
            b += w[i] * p[2];
        }
        r >>= WF_PRECISION, g >>= WF_PRECISION, b >>= WF_PRECISION;
        out[0] = (uint8_t)(r > 255 ? 255 : r), out[1] = (uint8_t)(g > 255 ? 255 : g), out[2] = (uint8_t)(b > 255 ? 255 : b);
        out += 3;
    }
}

static void vertical_tail(const uint8_t *const *rows, const int16_t *weights, int count, uint8_t *out, size_t from, size_t bytes) {
    for (size_t x = from; x < bytes; x++) {
        int sum = ROUND;
        for (int i = 0; i < count; i++) sum += weights[i] * rows[i][x];
        sum >>= WF_PRECISION;
        out[x] = (uint8_t)(sum > 255 ? 255 : sum);
    }
}

static void vertical_c(const uint8_t *const *rows, const int16_t *weights, int count, uint8_t *out, size_t bytes) {
    vertical_tail(rows, weights, count, out, 0, bytes);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* Of one output, a group of four taps: pixels R G B X become pairs (pixel 0, pixel 1) and (2, 3) of each channel. */
__attribute__((target("avx2"))) static inline __m256i four_taps(const uint8_t *pixels, const int16_t *weights) {
    const __m128i pair01 = _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
    const __m128i pair23 = _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
    const __m256i pairs = _mm256_set_m128i(pair23, pair01);
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)pixels));
    return _mm256_madd_epi16(_mm256_shuffle_epi8(both, pairs), _mm256_load_si256((const __m256i *)weights));
}

/* The sums of two outputs, each of two halves that belong together, to one output in each lane, rounded. */
__attribute__((target("avx2"))) static inline __m256i two_outputs(__m256i a, __m256i b) {
    __m256i sum = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
    return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(ROUND)), WF_PRECISION);
}

__attribute__((target("avx2"))) static void horizontal_avx2(const wf_taps *taps, const uint8_t *row, uint8_t *out) {
    const __m128i without_x = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const int groups = taps->groups;
    const int16_t *w = taps->spread;
    /* Four outputs at a time: what follows the sums costs as much as the sums of four taps. */
    for (int x = 0; x < taps->outputs; x += 4, out += 12) {
        const uint8_t *p0 = row + 4 * (size_t)taps->first[x], *p1 = row + 4 * (size_t)taps->first[x + 1];
        const uint8_t *p2 = row + 4 * (size_t)taps->first[x + 2], *p3 = row + 4 * (size_t)taps->first[x + 3];
        __m256i a = four_taps(p0, w), b = four_taps(p1, w + 16), c = four_taps(p2, w + 32), d = four_taps(p3, w + 48);
        w += 64;
        for (int i = 1; i < groups; i++, w += 64) {
            a = _mm256_add_epi32(a, four_taps(p0 + 16 * i, w));
            b = _mm256_add_epi32(b, four_taps(p1 + 16 * i, w + 16));
            c = _mm256_add_epi32(c, four_taps(p2 + 16 * i, w + 32));
            d = _mm256_add_epi32(d, four_taps(p3 + 16 * i, w + 48));
        }
        /* packs works inside 128-bit lanes: outputs 0 and 2 come to lie in the lower one, 1 and 3 in the upper one. */
        __m256i words = _mm256_packs_epi32(two_outputs(a, b), two_outputs(c, d));
        __m256i bytes = _mm256_packus_epi16(words, words);
        __m128i pixels = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
        /* The last four bytes are overwritten by the next outputs. */
        _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(pixels, without_x));
    }
}

__attribute__((target("avx2"))) static void vertical_avx2(const uint8_t *const *rows, const int16_t *weights, int count, uint8_t *out,
                                                          size_t bytes) {
    size_t x = 0;
    const __m256i round = _mm256_set1_epi32(ROUND);
    for (; x + 16 <= bytes; x += 16) {
        __m256i a = round, b = round;
        int i = 0;
        for (; i + 2 <= count; i += 2) {
            __m128i r0 = _mm_loadu_si128((const __m128i *)(rows[i] + x)), r1 = _mm_loadu_si128((const __m128i *)(rows[i + 1] + x));
            int32_t two;
            memcpy(&two, weights + i, 4);
            __m256i w = _mm256_set1_epi32(two);
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(r0, r1)), w));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpackhi_epi8(r0, r1)), w));
        }
        if (i < count) {
            __m128i r0 = _mm_loadu_si128((const __m128i *)(rows[i] + x)), zero = _mm_setzero_si128();
            __m256i w = _mm256_set1_epi32((uint16_t)weights[i]);
            a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(r0, zero)), w));
            b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpackhi_epi8(r0, zero)), w));
        }
        a = _mm256_srai_epi32(a, WF_PRECISION), b = _mm256_srai_epi32(b, WF_PRECISION);
        /* a holds outputs 0-7, b 8-15; packs works inside 128-bit lanes, so lanes are put in order after it. */
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
        __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(out + x), packed);
    }
    vertical_tail(rows, weights, count, out, x, bytes);
}

wf_kernels wf_kernels_choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) return (wf_kernels){horizontal_avx2, vertical_avx2, "avx2"};
    return wf_kernels_portable();
}
#else
wf_kernels wf_kernels_choose(void) { return wf_kernels_portable(); }
#endif

wf_kernels wf_kernels_portable(void) { return (wf_kernels){horizontal_c, vertical_c, "portable"}; }
