/* wellfed.pipeline.decode._jpeg: the Python face of jpegcodec.h. Limited API, so one build serves every Python >= 3.11. */
#include <Python.h>

#include "jpegcheck.h"
#include "jpegcodec.h"

#include <stdlib.h>
#include <string.h>

static int get_buffer(PyObject *object, Py_buffer *view, int writable, Py_ssize_t least, const char *name) {
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0) return -1;
    if (view->len < least) {
        PyErr_Format(PyExc_ValueError, "%s must hold at least %zd bytes, got %zd", name, least, view->len);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(decode_doc,
             "decode(images, boxes, orientations, flips, out, size, dct_scaling, portable, status) -> list[str]\n\n"
             "Decode, crop, resize and flip a chunk of JPEGs without the GIL.\n\n"
             "images: sequence of n bytes-like objects. boxes: n x 4 int32 (x, y, width, height) in the EXIF-oriented frame.\n"
             "orientations, flips: n uint8. out: n x size x size x 3 uint8, written in place. status: n int32, written: 0 done,\n"
             "1 unsupported, 2 corrupt, 3 out of memory, 4 box outside the picture. Returns libjpeg's message for each image.");

static PyObject *decode(PyObject *self, PyObject *args) {
    PyObject *images, *boxes_object, *orientations_object, *flips_object, *out_object, *status_object, *result = NULL;
    int size, dct_scaling, portable;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOippO", &images, &boxes_object, &orientations_object, &flips_object, &out_object, &size,
                          &dct_scaling, &portable, &status_object))
        return NULL;
    Py_ssize_t n = PySequence_Size(images);
    if (n < 0) return NULL;
    if (size < 1 || size > 4096) {
        PyErr_Format(PyExc_ValueError, "size must be between 1 and 4096, got %d", size);
        return NULL;
    }
    Py_ssize_t picture = (Py_ssize_t)size * size * 3;
    if (n > PY_SSIZE_T_MAX / picture) {
        PyErr_SetString(PyExc_ValueError, "too many images in one call");
        return NULL;
    }
    Py_buffer boxes = {0}, orientations = {0}, flips = {0}, out = {0}, status = {0};
    Py_buffer *views = calloc((size_t)n + 1, sizeof *views);
    char(*messages)[200] = calloc((size_t)n + 1, sizeof *messages);
    Py_ssize_t held = 0;
    if (!views || !messages) {
        PyErr_NoMemory();
        goto done;
    }
    if (get_buffer(boxes_object, &boxes, 0, n * 16, "boxes") || get_buffer(orientations_object, &orientations, 0, n, "orientations") ||
        get_buffer(flips_object, &flips, 0, n, "flips") || get_buffer(out_object, &out, 1, n * picture, "out") ||
        get_buffer(status_object, &status, 1, n * 4, "status"))
        goto done;
    for (; held < n; held++) {
        PyObject *item = PySequence_GetItem(images, held);
        if (!item) goto done;
        int failed = PyObject_GetBuffer(item, &views[held], PyBUF_SIMPLE);
        Py_DECREF(item);
        if (failed) goto done;
    }
    int no_memory = 0;
    Py_BEGIN_ALLOW_THREADS
    wf_decoder *decoder = wf_decoder_new(portable ? wf_kernels_portable() : wf_kernels_choose());
    if (!decoder) no_memory = 1;
    for (Py_ssize_t i = 0; decoder && i < n; i++) {
        int32_t box[4], code;
        memcpy(box, (const char *)boxes.buf + i * 16, 16);
        code = wf_decode(decoder, views[i].buf, (size_t)views[i].len, box, ((const uint8_t *)orientations.buf)[i],
                         ((const uint8_t *)flips.buf)[i], size, size, dct_scaling, (uint8_t *)out.buf + i * picture);
        memcpy((char *)status.buf + i * 4, &code, 4);
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
    if (boxes.obj) PyBuffer_Release(&boxes);
    if (orientations.obj) PyBuffer_Release(&orientations);
    if (flips.obj) PyBuffer_Release(&flips);
    if (out.obj) PyBuffer_Release(&out);
    if (status.obj) PyBuffer_Release(&status);
    free(views);
    free(messages);
    return result;
}

PyDoc_STRVAR(check_doc,
             "check(image) -> (status, warnings, message)\n\n"
             "Decode a whole JPEG at full size, every scan, without the GIL, and throw the pixels away.\n\n"
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

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, decode_doc},
    {"check", check, METH_O, check_doc},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) { return PyModule_AddStringConstant(module, "KERNELS", wf_kernels_choose().name); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_jpeg", .m_doc = "JPEG decoding on libjpeg-turbo, without the GIL.", .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__jpeg(void) { return PyModuleDef_Init(&definition); }
