/* Python objects as memory: the buffers that a function holds while its loop runs, checked for size. */

#ifndef KERNEL_BUFFERS_H
#define KERNEL_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_HELD 16

typedef struct {
    Py_buffer views[MAX_HELD];
    int count;
} Held;

typedef struct {
    Py_buffer *views;
    Py_ssize_t count;
} Sources;

static void release(Held *held)
{
    while (held->count)
        PyBuffer_Release(&held->views[--held->count]);
}

/* Return the memory of `object`, at least `items` of `size` bytes; NULL with an exception set. None is `absent`. */
static void *hold(Held *held, PyObject *object, int writable, int64_t items, int64_t size, void *absent)
{
    Py_buffer *view;
    if (object == Py_None)
        return absent;
    if (held->count == MAX_HELD) {
        PyErr_SetString(PyExc_SystemError, "too many buffers");
        return NULL;
    }
    view = &held->views[held->count];
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return NULL;
    held->count++;
    if (items < 0 || view->len / size < items) {
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes is too small", view->len);
        return NULL;
    }
    /* An empty buffer may have no address; NULL means failure here. */
    return view->buf ? view->buf : (void *)held;
}

static inline void release_sources(Sources *sources)
{
    while (sources->count)
        PyBuffer_Release(&sources->views[--sources->count]);
    PyMem_Free(sources->views);
    sources->views = NULL;
}

static inline int hold_sources(Sources *sources, PyObject *sequence)
{
    Py_ssize_t i, count = PySequence_Size(sequence);
    sources->views = NULL;
    sources->count = 0;
    if (count < 0)
        return -1;
    sources->views = PyMem_Calloc((size_t)count + 1, sizeof(Py_buffer));
    if (!sources->views) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        int failed = !item || PyObject_GetBuffer(item, &sources->views[i], PyBUF_SIMPLE) < 0;
        Py_XDECREF(item);
        if (failed) {
            release_sources(sources);
            return -1;
        }
        sources->count++;
    }
    return 0;
}

static inline void copy_bytes(uint8_t *to, int64_t room, const uint8_t *from, int64_t left, int64_t length)
{
    /* A copy of fixed size is one or two instructions; it may touch the bytes behind if they exist. */
    if (length <= 16 && room >= 16 && left >= 16)
        memcpy(to, from, 16);
    else
        memcpy(to, from, (size_t)length);
}

#endif
