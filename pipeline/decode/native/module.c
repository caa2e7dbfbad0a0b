/* wellfed.pipeline.decode._jpeg: the Python face of jpegcodec.h. Limited API, so one build serves every Python >= 3.11. */
#include <Python.h>

#include "files.h"
#include "jpegcheck.h"
#include "jpegcodec.h"
#include "jpegheader.h"
#include "jpegwrite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

static int get_buffer(PyObject *object, Py_buffer *view, int writable, Py_ssize_t least, const char *name) {
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return -1;
    if (view->len < least) {
        PyErr_Format(PyExc_ValueError, "%s must hold at least %zd bytes, got %zd", name, least, view->len);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

/* The buffers of n images; on an error `held` says how many there are to be let go all the same. */
static int hold_images(PyObject *images, Py_buffer *views, Py_ssize_t n, Py_ssize_t *held) {
    for (; *held < n; ++*held) {
        PyObject *item = PySequence_GetItem(images, *held);
        if (!item) return -1;
        int failed = PyObject_GetBuffer(item, &views[*held], PyBUF_SIMPLE);
        Py_DECREF(item);
        if (failed) return -1;
    }
    return 0;
}

/* What to make of each of n pictures. */
typedef struct {
    Py_ssize_t n, picture;
    int size, headroom;
    wf_kernels kernels;
    Py_buffer boxes, orientations, flips, out, status;
} wf_chunk;

static int chunk_of(wf_chunk *chunk, Py_ssize_t n, int size, int dct_scaling, int portable, PyObject *boxes, PyObject *orientations,
                    PyObject *flips, PyObject *out, PyObject *status) {
    if (size < 1 || size > 4096) {
        PyErr_Format(PyExc_ValueError, "size must be between 1 and 4096, got %d", size);
        return -1;
    }
    chunk->n = n;
    chunk->size = size;
    chunk->headroom = dct_scaling ? 1 : 0;
    chunk->kernels = portable ? wf_kernels_portable() : wf_kernels_choose();
    chunk->picture = (Py_ssize_t)size * size * 3;
    if (n > PY_SSIZE_T_MAX / chunk->picture) {
        PyErr_SetString(PyExc_ValueError, "too many images in one call");
        return -1;
    }
    return get_buffer(boxes, &chunk->boxes, 0, n * 16, "boxes") || get_buffer(orientations, &chunk->orientations, 0, n, "orientations") ||
                   get_buffer(flips, &chunk->flips, 0, n, "flips") || get_buffer(out, &chunk->out, 1, n * chunk->picture, "out") ||
                   get_buffer(status, &chunk->status, 1, n * 4, "status")
               ? -1
               : 0;
}

static void chunk_release(wf_chunk *chunk) {
    Py_buffer *const all[] = {&chunk->boxes, &chunk->orientations, &chunk->flips, &chunk->out, &chunk->status};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->obj) PyBuffer_Release(all[i]);
}

static int32_t chunk_decode(const wf_chunk *chunk, wf_decoder *decoder, Py_ssize_t i, const uint8_t *data, size_t length) {
    wf_view view = {.orientation = ((const uint8_t *)chunk->orientations.buf)[i], .flip = ((const uint8_t *)chunk->flips.buf)[i],
                    .width = chunk->size, .height = chunk->size, .headroom = chunk->headroom};
    memcpy(view.box, (const char *)chunk->boxes.buf + i * 16, 16);
    return wf_decode(decoder, data, length, &view, (uint8_t *)chunk->out.buf + i * chunk->picture);
}

static void chunk_say(const wf_chunk *chunk, Py_ssize_t i, int32_t code) { memcpy((char *)chunk->status.buf + i * 4, &code, 4); }

PyDoc_STRVAR(decode_doc,
             "decode(images, boxes, orientations, flips, out, size, dct_scaling, portable, status) -> list[str]\n\n"
             "Decode, crop, resize and flip a chunk of JPEGs without the GIL.\n\n"
             "images: sequence of n bytes-like objects. boxes: n x 4 int32 (x, y, width, height) in the EXIF-oriented frame.\n"
             "orientations, flips: n uint8. out: n x size x size x 3 uint8, written in place. status: n int32, written: 0 done,\n"
             "1 unsupported, 2 corrupt, 3 out of memory, 4 box outside the picture. Returns libjpeg's message for each image.");

static PyObject *decode(PyObject *self, PyObject *args) {
    PyObject *images, *boxes, *orientations, *flips, *out, *status, *result = NULL;
    int size, dct_scaling, portable;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOippO", &images, &boxes, &orientations, &flips, &out, &size, &dct_scaling, &portable, &status))
        return NULL;
    Py_ssize_t n = PySequence_Size(images), held = 0;
    if (n < 0) return NULL;
    wf_chunk chunk = {0};
    Py_buffer *views = NULL;
    char(*messages)[200] = NULL;
    if (chunk_of(&chunk, n, size, dct_scaling, portable, boxes, orientations, flips, out, status)) goto done;
    views = calloc((size_t)n + 1, sizeof *views);
    messages = calloc((size_t)n + 1, sizeof *messages);
    if (!views || !messages) {
        PyErr_NoMemory();
        goto done;
    }
    if (hold_images(images, views, n, &held)) goto done;
    int no_memory = 0;
    Py_BEGIN_ALLOW_THREADS
    wf_decoder *decoder = wf_decoder_new(chunk.kernels);
    if (!decoder) no_memory = 1;
    for (Py_ssize_t i = 0; decoder && i < n; i++) {
        int32_t code = chunk_decode(&chunk, decoder, i, views[i].buf, (size_t)views[i].len);
        chunk_say(&chunk, i, code);
        if (code) strncpy(messages[i], wf_decoder_message(decoder), sizeof messages[i] - 1);
    }
    wf_decoder_free(decoder);
    Py_END_ALLOW_THREADS
    if (no_memory) {
        PyErr_NoMemory();
        goto done;
    }
    result = PyList_New(n);
    for (Py_ssize_t i = 0; result && i < n; i++) {
        PyObject *text = PyUnicode_DecodeUTF8(messages[i], (Py_ssize_t)strlen(messages[i]), "replace");
        if (!text || PyList_SetItem(result, i, text) < 0) Py_CLEAR(result);
    }
done:
    for (Py_ssize_t i = 0; i < held; i++) PyBuffer_Release(&views[i]);
    chunk_release(&chunk);
    free(views);
    free(messages);
    return result;
}

/* Where n samples lie: a file descriptor (int32), an offset and a size (int64) each. */
typedef struct {
    Py_buffer descriptors, offsets, sizes;
} wf_stretches;

static int stretches_of(wf_stretches *stretches, PyObject *descriptors, PyObject *offsets, PyObject *sizes, Py_ssize_t *n) {
    if (get_buffer(descriptors, &stretches->descriptors, 0, 0, "descriptors")) return -1;
    *n = stretches->descriptors.len / 4;
    return get_buffer(offsets, &stretches->offsets, 0, *n * 8, "offsets") || get_buffer(sizes, &stretches->sizes, 0, *n * 8, "sizes") ? -1 : 0;
}

static void stretches_release(wf_stretches *stretches) {
    if (stretches->descriptors.obj) PyBuffer_Release(&stretches->descriptors);
    if (stretches->offsets.obj) PyBuffer_Release(&stretches->offsets);
    if (stretches->sizes.obj) PyBuffer_Release(&stretches->sizes);
}

static int64_t int64_at(const Py_buffer *values, Py_ssize_t i) {
    int64_t value;
    memcpy(&value, (const char *)values->buf + i * 8, 8);
    return value;
}

/* Whether all of stretch i was read into `to`. */
static int stretch_read(const wf_stretches *stretches, Py_ssize_t i, uint8_t *to) {
    int32_t descriptor;
    memcpy(&descriptor, (const char *)stretches->descriptors.buf + i * 4, 4);
    size_t size = (size_t)int64_at(&stretches->sizes, i);
    return wf_read(descriptor, int64_at(&stretches->offsets, i), to, size) == size;
}

PyDoc_STRVAR(decode_files_doc,
             "decode_files(descriptors, offsets, sizes, boxes, orientations, flips, out, size, dct_scaling, portable, status) -> None\n\n"
             "As decode, of n JPEGs that are read from open files, each when its turn comes, without the GIL.\n\n"
             "descriptors: n int32. offsets, sizes: n int64, bytes. status: also 5, where the file did not give all its bytes.");

static PyObject *decode_files(PyObject *self, PyObject *args) {
    PyObject *descriptors, *offsets, *sizes, *boxes, *orientations, *flips, *out, *status, *result = NULL;
    int size, dct_scaling, portable;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOOippO", &descriptors, &offsets, &sizes, &boxes, &orientations, &flips, &out, &size, &dct_scaling,
                          &portable, &status))
        return NULL;
    Py_ssize_t n = 0;
    wf_chunk chunk = {0};
    wf_stretches stretches = {0};
    if (stretches_of(&stretches, descriptors, offsets, sizes, &n)) goto done;
    if (chunk_of(&chunk, n, size, dct_scaling, portable, boxes, orientations, flips, out, status)) goto done;
    int no_memory = 0;
    Py_BEGIN_ALLOW_THREADS
    wf_decoder *decoder = wf_decoder_new(chunk.kernels);
    uint8_t *data = NULL;
    int64_t room = 0;
    if (!decoder) no_memory = 1;
    for (Py_ssize_t i = 0; decoder && i < n; i++) {
        int64_t length = int64_at(&stretches.sizes, i);
        // An index may promise any size: half as much again is kept only where that is a size, too.
        if (length > room) {
            free(data);
            room = length < INT64_MAX / 2 ? length + length / 2 : length;
            data = malloc((size_t)room);
            if (!data) room = 0;
        }
        int32_t code = length < 0 ? WF_UNREAD : length > room ? WF_MEMORY : WF_OK;
        if (!code && !stretch_read(&stretches, i, data)) code = WF_UNREAD;
        chunk_say(&chunk, i, code ? code : chunk_decode(&chunk, decoder, i, data, (size_t)length));
    }
    free(data);
    wf_decoder_free(decoder);
    Py_END_ALLOW_THREADS
    if (no_memory) PyErr_NoMemory();
    else result = Py_NewRef(Py_None);
done:
    stretches_release(&stretches);
    chunk_release(&chunk);
    return result;
}

PyDoc_STRVAR(read_files_doc,
             "read_files(descriptors, offsets, sizes, out) -> int\n\n"
             "Read n stretches of open files, one behind the other, into `out`, without the GIL.\n\n"
             "descriptors: n int32. offsets, sizes: n int64, bytes. out: the sum of the sizes in bytes.\n"
             "Returns how many were read whole, the first ones: n, or the place of one whose file did not give all its bytes.");

static PyObject *read_files(PyObject *self, PyObject *args) {
    PyObject *descriptors, *offsets, *sizes, *out_object, *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO", &descriptors, &offsets, &sizes, &out_object)) return NULL;
    Py_ssize_t n = 0, whole = 0;
    wf_stretches stretches = {0};
    Py_buffer out = {0};
    if (stretches_of(&stretches, descriptors, offsets, sizes, &n)) goto done;
    int64_t total = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t length = int64_at(&stretches.sizes, i);
        if (length < 0 || length > PY_SSIZE_T_MAX - total) {
            PyErr_SetString(PyExc_ValueError, "sizes must be at least 0, and their sum that of a buffer");
            goto done;
        }
        total += length;
    }
    if (get_buffer(out_object, &out, 1, (Py_ssize_t)total, "out")) goto done;
    Py_BEGIN_ALLOW_THREADS
    uint8_t *to = out.buf;
    for (; whole < n && stretch_read(&stretches, whole, to); whole++) to += int64_at(&stretches.sizes, whole);
    Py_END_ALLOW_THREADS
    result = PyLong_FromSsize_t(whole);
done:
    stretches_release(&stretches);
    if (out.obj) PyBuffer_Release(&out);
    return result;
}

PyDoc_STRVAR(plain_header_doc,
             "plain_header(image) -> (width, height, mode) | None\n\n"
             "What jpegheader.plain_jpeg_in_python says.");

static PyObject *plain_header(PyObject *self, PyObject *image) {
    Py_buffer view;
    wf_plain plain;
    (void)self;
    if (PyObject_GetBuffer(image, &view, PyBUF_SIMPLE) < 0) return NULL;
    int answers = wf_plain_jpeg(view.buf, (size_t)view.len, &plain);
    PyBuffer_Release(&view);
    if (!answers) Py_RETURN_NONE;
    return Py_BuildValue("iis", plain.width, plain.height, plain.layers == 1 ? "L" : "RGB");
}

PyDoc_STRVAR(ordinary_doc,
             "ordinary(images, widths, heights, out) -> None\n\n"
             "What ordinary.is_ordinary_in_python says of each, without the GIL.\n\n"
             "images: sequence of n bytes-like objects. widths, heights: n int64. out: n uint8, written: 1 or 0.");

static PyObject *ordinary(PyObject *self, PyObject *args) {
    PyObject *images, *widths_object, *heights_object, *out_object, *result = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOO", &images, &widths_object, &heights_object, &out_object)) return NULL;
    Py_ssize_t n = PySequence_Size(images), held = 0;
    if (n < 0) return NULL;
    Py_buffer widths = {0}, heights = {0}, out = {0};
    Py_buffer *views = calloc((size_t)n + 1, sizeof *views);
    if (!views) return PyErr_NoMemory();
    if (get_buffer(widths_object, &widths, 0, n * 8, "widths") || get_buffer(heights_object, &heights, 0, n * 8, "heights") ||
        get_buffer(out_object, &out, 1, n, "out"))
        goto done;
    if (hold_images(images, views, n, &held)) goto done;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t width, height;
        memcpy(&width, (const char *)widths.buf + i * 8, 8);
        memcpy(&height, (const char *)heights.buf + i * 8, 8);
        ((uint8_t *)out.buf)[i] = (uint8_t)wf_ordinary_jpeg(views[i].buf, (size_t)views[i].len, width, height);
    }
    Py_END_ALLOW_THREADS
    Py_INCREF(Py_None);
    result = Py_None;
done:
    for (Py_ssize_t i = 0; i < held; i++) PyBuffer_Release(&views[i]);
    if (widths.obj) PyBuffer_Release(&widths);
    if (heights.obj) PyBuffer_Release(&heights);
    if (out.obj) PyBuffer_Release(&out);
    free(views);
    return result;
}

PyDoc_STRVAR(check_doc,
             "check(image) -> (status, warnings, message)\n\n"
             "Decode a whole JPEG, every scan, without the GIL, and throw the pixels away.\n\n"
             "status: as for decode. warnings: what libjpeg warned about. message: its words on the failure.");

static PyObject *check(PyObject *self, PyObject *image) {
    Py_buffer view;
    int status;
    long warnings = 0;
    char message[WF_MESSAGE] = "";
    (void)self;
    if (PyObject_GetBuffer(image, &view, PyBUF_SIMPLE) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = wf_check(view.buf, (size_t)view.len, &warnings, message);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    if (status == WF_MEMORY) return PyErr_NoMemory();
    return Py_BuildValue("ilN", status, warnings, PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace"));
}

/* (status, warnings, message, bytes or None); frees `out`. */
static PyObject *written(int status, long warnings, const char *message, uint8_t *out, size_t length) {
    if (status == WF_MEMORY) return PyErr_NoMemory();
    PyObject *bytes = NULL, *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
    if (status == WF_OK) {
        bytes = PyBytes_FromStringAndSize((const char *)out, (Py_ssize_t)length);
        free(out);
    } else {
        bytes = Py_None;
        Py_INCREF(bytes);
    }
    if (text && bytes) return Py_BuildValue("ilNN", status, warnings, text, bytes);
    Py_XDECREF(text);
    Py_XDECREF(bytes);
    return NULL;
}

PyDoc_STRVAR(baseline_doc,
             "baseline(image) -> (status, warnings, message, bytes | None)\n\n"
             "Rewrite a JPEG as baseline, in one scan with optimised tables, by copying its coefficients, without the GIL.\n\n"
             "status: 0 done, 1 it decodes and cannot be written like that, 2 corrupt or cut short. The result is not\n"
             "baseline (SOF0) but extended (SOF1) where the quantization tables are of 16 bit.");

static PyObject *baseline(PyObject *self, PyObject *image) {
    Py_buffer view;
    uint8_t *out = NULL;
    size_t length = 0;
    long warnings = 0;
    char message[WF_MESSAGE] = "";
    int status;
    (void)self;
    if (PyObject_GetBuffer(image, &view, PyBUF_SIMPLE) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = wf_baseline(view.buf, (size_t)view.len, &out, &length, &warnings, message);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return written(status, warnings, message, out, length);
}

PyDoc_STRVAR(resize_doc,
             "resize(image, orientation, width, height, headroom, quality, grey) -> (status, warnings, message, bytes | None)\n\n"
             "Decode all of a JPEG, turn it by its EXIF orientation, resize it (triangle filter, antialiased) and encode it as a\n"
             "baseline JPEG, without the GIL.\n\n"
             "width, height: pixels of the result, at most 16384. headroom: 0, or libjpeg may reduce the picture while it decodes\n"
             "where it stays at least this many times as large as the result. quality: 1 to 100. grey: encode the red channel\n"
             "alone. status: as for decode.");

static PyObject *resize(PyObject *self, PyObject *args) {
    PyObject *image;
    int orientation, width, height, headroom, quality, grey;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oiiiiip", &image, &orientation, &width, &height, &headroom, &quality, &grey)) return NULL;
    if (width < 1 || height < 1 || width > 16384 || height > 16384 || headroom < 0 || headroom > 16 || quality < 1 || quality > 100) {
        PyErr_Format(PyExc_ValueError, "1 to 16384 pixels a side, headroom 0 to 16 and quality 1 to 100; got %d x %d, %d, %d", width,
                     height, headroom, quality);
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(image, &view, PyBUF_SIMPLE) < 0) return NULL;
    const wf_view all = {.orientation = orientation, .width = width, .height = height, .headroom = headroom, .whole = 1};
    uint8_t *out = NULL;
    size_t length = 0;
    int status = WF_MEMORY;
    long warnings = 0;
    char message[WF_MESSAGE] = "";
    Py_BEGIN_ALLOW_THREADS
    wf_decoder *decoder = wf_decoder_new(wf_kernels_choose());
    uint8_t *pixels = malloc((size_t)width * (size_t)height * 3);
    if (decoder && pixels) {
        status = wf_decode(decoder, view.buf, (size_t)view.len, &all, pixels);
        warnings = wf_decoder_warnings(decoder);
        if (status) strncpy(message, wf_decoder_message(decoder), sizeof message - 1);
        else status = wf_encode(pixels, width, height, grey, quality, &out, &length, message);
    }
    free(pixels);
    wf_decoder_free(decoder);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return written(status, warnings, message, out, length);
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, decode_doc},
    {"decode_files", decode_files, METH_VARARGS, decode_files_doc},
    {"read_files", read_files, METH_VARARGS, read_files_doc},
    {"plain_header", plain_header, METH_O, plain_header_doc},
    {"ordinary", ordinary, METH_VARARGS, ordinary_doc},
    {"check", check, METH_O, check_doc},
    {"baseline", baseline, METH_O, baseline_doc},
    {"resize", resize, METH_VARARGS, resize_doc},
    {NULL, NULL, 0, NULL},
};

#define TEXT(x) #x
#define VALUE(x) TEXT(x)

static int fill(PyObject *module) {
#ifdef LIBJPEG_TURBO_VERSION
    const char *library = "libjpeg-turbo " VALUE(LIBJPEG_TURBO_VERSION);
#else
    const char *library = "libjpeg " VALUE(JPEG_LIB_VERSION);
#endif
    if (PyModule_AddStringConstant(module, "LIBRARY", library)) return -1;
    return PyModule_AddStringConstant(module, "KERNELS", wf_kernels_choose().name);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_jpeg", .m_doc = "JPEGs decoded, checked and rewritten on libjpeg-turbo, without the GIL.", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__jpeg(void) { return PyModuleDef_Init(&definition); }
