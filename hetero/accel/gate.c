/* Gates in front of NumPy's loops of `matmul`: small products run as ever, large ones are offered to
   Python. Where it has not computed one, for whatever reason, NumPy's loop does. An exception that
   ends the Python code, such as one that a signal's handler raises, is raised once the product is
   done: by a pending call in the main thread, and by PyThreadState_SetAsyncExc in others. Python's
   functions are those of the process that loads this, of any version: its headers are not needed. */
#include <stdint.h>

typedef void loop(char **, intptr_t *, intptr_t *, void *);
typedef struct object object;
extern object *PyExc_RecursionError;
int PyGILState_Ensure(void), Py_AddPendingCall(int (*)(void *), void *);
int PyThreadState_SetAsyncExc(unsigned long, object *);
unsigned long PyThread_get_thread_ident(void);
object *PyObject_CallFunction(object *, const char *, ...);
void *PyCapsule_GetPointer(object *, const char *);
void PyGILState_Release(int), Py_DecRef(object *);
void PyErr_Fetch(object **, object **, object **), PyErr_Restore(object *, object *, object *);

struct gate {                       /* as in gate.py */
    intptr_t matrices, vectors;     /* least multiplications of a product that is offered */
    loop *numpys;
    object *offered;                /* Python's function */
} gates[2];                         /* of float32 and float64 */
unsigned long main_thread;
static object *type, *value, *traceback;    /* of the main thread's exception */

static int raise_it(void *unused)
{
    (void)unused;
    object *one = type, *two = value, *three = traceback;
    type = value = traceback = 0;
    if (one) PyErr_Restore(one, two, three);
    return -!!one;
}

static int offer(struct gate *gate, char **args, intptr_t *dims, intptr_t *steps, void *data)
{
    intptr_t is_done = 0;
    int state = PyGILState_Ensure();
    object *error[3] = {PyObject_CallFunction(gate->offered, "KKKKK", (unsigned long long)&is_done,
        (unsigned long long)args, (unsigned long long)dims, (unsigned long long)steps,
        (unsigned long long)data), 0, 0};
    if (!error[0]) {
        unsigned long thread = PyThread_get_thread_ident();
        PyErr_Fetch(error, error + 1, error + 2);
        if (error[0] == PyExc_RecursionError) ;         /* NumPy's loop needs no frame */
        else if (thread != main_thread) PyThreadState_SetAsyncExc(thread, error[0]);
        else if (!type) {
            type = error[0], value = error[1], traceback = error[2];
            error[0] = error[1] = error[2] = 0;
            Py_AddPendingCall(raise_it, 0);
        }
    }
    for (int i = 0; i < 3; i++) Py_DecRef(error[i]);
    PyGILState_Release(state);
    return is_done;
}

static inline void pass(struct gate *gate, char **args, intptr_t *dims, intptr_t *steps, void *data)
{
    int has_vector = dims[1] == 1 || dims[3] == 1;
    intptr_t least = has_vector ? gate->vectors : gate->matrices;
    if (dims[0] * dims[1] * dims[2] * dims[3] < least || !offer(gate, args, dims, steps, data))
        gate->numpys(args, dims, steps, data);
}
static void pass_floats(char **args, intptr_t *dims, intptr_t *steps, void *data)
{
    pass(gates, args, dims, steps, data);
}
static void pass_doubles(char **args, intptr_t *dims, intptr_t *steps, void *data)
{
    pass(gates + 1, args, dims, steps, data);
}
loop *passes[2] = {pass_floats, pass_doubles};

/* A function of NumPy's C API, from the capsule with a table of them. */
void *function_of(object *capsule, int place)
{
    return ((void **)PyCapsule_GetPointer(capsule, 0))[place];
}
