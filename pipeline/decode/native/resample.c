#include "resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUND (1 << (WF_PRECISION - 1))

int wf_taps_make(wf_taps *taps, double start, double length, int low, int high, int outputs, int reversed) {
    double scale = length / outputs, support = scale > 1 ? scale : 1;
    int width = ((int)ceil(support) * 2 + 1 + 3) & ~3;
    size_t need = (size_t)outputs * (size_t)width;
    if (taps->capacity_outputs < (size_t)outputs) {
        free(taps->first);
        taps->first = malloc(2 * (size_t)outputs * sizeof(int));
        taps->capacity_outputs = taps->first ? (size_t)outputs : 0;
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

void wf_taps_free(wf_taps *taps) {
    free(taps->first);
    free(taps->weights);
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

__attribute__((target("avx2"))) static void horizontal_avx2(const wf_taps *taps, const uint8_t *row, uint8_t *out) {
    /* Four pixels R G B X become pairs (pixel 0, pixel 1) and (2, 3) of each channel as int16, for multiply-add. */
    const __m128i pair01 = _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
    const __m128i pair23 = _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
    const __m256i pairs = _mm256_set_m128i(pair23, pair01);
    const __m128i round = _mm_set1_epi32(ROUND);
    for (int x = 0; x < taps->outputs; x++) {
        const int16_t *w = taps->weights + (size_t)x * taps->width;
        const uint8_t *p = row + 4 * (size_t)taps->first[x];
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < taps->count[x]; i += 4) {
            __m256i pixels = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(p + 4 * i)));
            __m128i four = _mm_loadl_epi64((const __m128i *)(w + i));
            __m256i weight = _mm256_set_m128i(_mm_shuffle_epi32(four, 0x55), _mm_shuffle_epi32(four, 0x00));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, pairs), weight));
        }
        __m128i s = _mm_add_epi32(_mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1)), round);
        s = _mm_srai_epi32(s, WF_PRECISION);
        s = _mm_packus_epi16(_mm_packs_epi32(s, s), s);
        int pixel = _mm_cvtsi128_si32(s);
        memcpy(out, &pixel, 4); /* the fourth byte is overwritten by the next pixel */
        out += 3;
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
